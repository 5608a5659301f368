"""Which mask belongs to which image, told from their names alone."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from paucal.data.masks.naming import (
    Reading,
    bare_number,
    fold,
    image_cores,
    is_decoy_folder,
    mask_readings,
    name_of_object,
    numbered_readings,
    prefixes,
    says_decoy,
    without_suffix,
)
from paucal.data.splits.part_names import PARTS
from paucal.types import UserError
from paucal.wording import counted, was

SHOWN = 5  # files that a note names
FOLDER = "folder"  # kind of the masks that a folder of their own holds
Place = tuple[str, ...]
Hit = tuple["File", Reading]


@dataclass(frozen=True)
class File:
    """A file of a set with masks, and how it is compared with others.

    Attributes:
        key: Path relative to the folder that was searched, with forward slashes.
        place: Folders above it, without those that say that it is an image or a mask; folded.
        stem: Name without suffix, in Unicode's form NFC.
        part: Part that its folders say; "" for none.
    """

    key: str
    place: Place
    stem: str
    part: str = ""


@dataclass(frozen=True)
class Matches:
    """The masks of each image, and the files that were left out.

    Attributes:
        masks: Keys of the masks of each image, by the key of the image.
        alone: Keys of images without a mask.
        lost: Keys of masks without an image.
        decoys: Keys of pictures of masks, and of labels of another kind.
    """

    masks: dict[str, list[str]] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    decoys: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Return sentences on what was left out, and on what is put together."""
        notes = [
            *left_out(self.alone, "image without a mask", "images without masks"),
            *left_out(self.lost, "mask without an image", "masks without images"),
            *left_out(self.decoys, "file beside the masks", "files beside the masks"),
        ]
        several = [key for key, found in self.masks.items() if len(found) > 1]
        if several:
            have = counted(len(several), "image has", "images have")
            shown = f"{listed(self.masks[several[0]])} of {several[0]}"
            notes.append(f"{have} several masks, which are joined: a pixel that any of them marks is marked ({shown})")
        return notes


def match(images: Sequence[File], masks: Sequence[File]) -> Matches:
    """Find the masks of each image by their names.

    Raises:
        UserError: A mask may belong to several images, or masks of one image are not known to be parts of one.
    """
    return _Matching(images, masks).run()


class _Matching:
    """A search that looks at the surest readings of all names first, so that later readings see what is taken."""

    def __init__(self, images: Sequence[File], masks: Sequence[File]) -> None:
        self._images, self._masks = images, masks
        self._index = _Index((image.place, image) for image in images)
        self._anywhere = _Index(((), image) for image in images)
        self._found: dict[str, list[tuple[File, Reading]]] = {}

    def run(self) -> Matches:
        left = self.search((self._exact, self._worded, self._numbered, self._counted, self._alone_in_folder))
        left = self._elsewhere(left)
        self._refuse_classes()
        decoys = [mask for mask in left if self._is_decoy(mask)]
        lost = [mask for mask in left if not self._is_decoy(mask)]
        for mask in lost:
            self._refuse_further(mask)
        self._refuse_glued(lost)
        kept = {image.key: self._kept(image, decoys) for image in self._images if image.key in self._found}
        alone = [image.key for image in self._images if image.key not in self._found]
        return Matches(kept, alone, [mask.key for mask in lost], sorted(mask.key for mask in decoys))

    def search(self, readings: Iterable[Callable[[File], Hit | None]]) -> list[File]:
        """Look for the image of each mask by one reading of its name after another; return masks without an image."""
        left = list(self._masks)
        for find in readings:
            left = self._each(left, find)
        return left

    def _each(self, masks: Iterable[File], find: Callable[[File], Hit | None]) -> list[File]:
        """Give each mask to the image that a reading of its name finds; return the masks that none was found for."""
        hits = [(mask, find(mask)) for mask in masks]
        for mask, hit in hits:
            if hit is not None:
                self._found.setdefault(hit[0].key, []).append((mask, hit[1]))
        return [mask for mask, hit in hits if hit is None]

    def _exact(self, mask: File) -> Hit | None:
        image = self._index.exact(mask.place, mask.stem, mask)
        return image and (image, Reading(mask.stem))

    def _worded(self, mask: File) -> Hit | None:
        """Find `a` for `a_mask` or `a.jpg`, `a_sat` for `a_mask`, and `img_1` for `mask_1` or `1`."""
        return self._first(mask, [*mask_readings(mask.stem), Reading(mask.stem)])

    def _numbered(self, mask: File) -> Hit | None:
        """Find `a` for `a_mask_1`, or `a_1` where that has no mask yet; refuse where both may be."""
        hits = [hit for reading in numbered_readings(mask.stem) if (hit := self._first(mask, [reading]))]
        hits = [(image, reading) for image, reading in hits if reading.number or image.key not in self._found]
        if len({image.key for image, _ in hits}) > 1:
            raise UserError(
                f"the mask {mask.key!r} may belong to {hits[0][0].key!r} or to {hits[-1][0].key!r}: rename it so that "
                "it begins with the whole name of its image."
            )
        return hits[0] if hits else None

    def _counted(self, mask: File) -> Hit | None:
        """Find `a` for `a_1` and `a_2`, where no mask of the set is called as its image."""
        reading = bare_number(mask.stem)
        return None if reading is None or self._found else self._first(mask, [reading])

    def _alone_in_folder(self, mask: File) -> Hit | None:
        """Find the one image of a folder for all its masks (`7/images/7.png`, `7/masks/*`), and `7.png` for `7/*`."""
        if not mask.place or mask.place[-1] in PARTS or self._is_decoy(mask):
            return None
        image = self._index.only(mask.place) or self._index.exact(mask.place[:-1], mask.place[-1], mask)
        if image is None or any(not reading.number for _, reading in self._found.get(image.key, ())):
            return None
        return image, Reading(image.stem, FOLDER, fold(mask.stem))

    def _elsewhere(self, masks: Sequence[File]) -> list[File]:
        """Find images for masks in folders of another nesting, by names that occur once among the images."""
        names = Counter(fold(image.stem) for image in self._images)
        flat = [replace(image, place=()) for image in self._images if names[fold(image.stem)] == 1]
        inner = _Matching(flat, [replace(mask, place=()) for mask in masks if not self._is_decoy(mask)])
        inner.search([inner._exact, inner._worded, inner._numbered, *([] if self._found else [inner._counted])])
        places = {mask.key: mask.place for mask in self._masks}
        for key, found in inner._found.items():
            both = [mask for mask, _ in [*self._found.get(key, ()), *found]]
            if len({places[mask.key] for mask in both}) > 1:
                raise UserError(
                    f"{both[0].key!r} and {both[-1].key!r} are masks of {key!r} in two folders: join them to one file "
                    "for each image, with a value for each class, or name one of the folders with --masks."
                )
            self._found.setdefault(key, []).extend(found)
        taken = {mask.key for found in inner._found.values() for mask, _ in found}
        return [mask for mask in masks if mask.key not in taken]

    def _first(self, mask: File, readings: Iterable[Reading]) -> Hit | None:
        for reading in readings:
            for base in dict.fromkeys((reading.base, without_suffix(reading.base))):
                image = self._index.exact(mask.place, base, mask) or self._index.core(mask.place, base, mask)
                if image is not None:
                    return image, reading
        return None

    def _is_decoy(self, mask: File) -> bool:
        return says_decoy(mask.stem) or any(is_decoy_folder(name) for name in mask.place)

    def _refuse_further(self, mask: File) -> None:
        """Refuse a mask that begins with the name of an image and would be left out as if it marked nothing."""
        for base in prefixes(mask.stem):
            image = self._index.exact(mask.place, base, mask) or self._anywhere.one((), base)
            if image is not None and image.key in self._found:
                first = self._found[image.key][0][0]
                raise UserError(
                    f"the mask {mask.key!r} belongs to {image.key!r} by its name, beside {first.key!r}: number both if "
                    f"they mark objects of one kind ({base}_mask_1, {base}_mask_2), else move one out of the folder."
                )

    def _refuse_glued(self, lost: Sequence[File]) -> None:
        """Refuse masks that half of the images seem to have besides, counted without a sign (`a072` of `a07`)."""
        images = {(image.place, fold(image.stem)): image for image in self._images if image.key in self._found}
        by_count: dict[str, list[tuple[File, File]]] = defaultdict(list)
        for mask in lost:
            for cut in range(1, len(mask.stem)):
                if mask.stem[cut:].isdigit() and (image := images.get((mask.place, fold(mask.stem[:cut])))):
                    by_count[mask.stem[cut:]].append((mask, image))
        for count, pairs in by_count.items():
            if len(pairs) > max(1, len(images) / 2):
                mask, image = pairs[0]
                raise UserError(
                    f"the mask {mask.key!r} has no image of its name, and may be one more of {image.key!r}: {count!r} "
                    f"follows the names of {counted(len(pairs), 'image')}: call it {image.stem}_mask_{count} if it is, "
                    "else move masks without an image out of the folder."
                )

    def _refuse_classes(self) -> None:
        """Refuse folders of masks whose names say classes (`7/masks/liver.png` and `7/masks/spleen.png`)."""
        seen: dict[str, set[str]] = defaultdict(set)
        for key, found in self._found.items():
            for mask, reading in found:
                if reading.kind == FOLDER and (name := name_of_object(mask.stem)):
                    seen[name].add(key)
        names = sorted(name for name, keys in seen.items() if len(keys) > 1)
        if len(names) > 1:
            raise UserError(
                f"the masks of each image lie in a folder and are called {', '.join(map(repr, names[:SHOWN]))}, as "
                "classes are: join them to one file for each image, with a value for each class."
            )

    def _kept(self, image: File, decoys: list[File]) -> list[str]:
        """Return the masks of an image in order.

        Args:
            image: Image with one mask or more.
            decoys: Takes in those that are not used.

        Raises:
            UserError: They are called in different ways, so that nobody knows which one is meant.
        """
        found = self._found[image.key]
        kinds = {reading.kind for _, reading in found}
        if len(kinds) > 1 and all(kind.endswith("ids") for kind in kinds):  # Cityscapes' labelIds and labelTrainIds
            decoys += [mask for mask, reading in found if "train" not in reading.kind]
            found = [(mask, reading) for mask, reading in found if "train" in reading.kind]
        found = sorted(found, key=lambda one: (len(one[1].number), one[1].number, one[0].key))
        names = {(reading.kind, reading.number) for _, reading in found}
        if len(found) > 1 and (len(names) < len(found) or len({kind for kind, _ in names}) > 1):
            raise UserError(
                f"{found[0][0].key!r} and {found[1][0].key!r} belong to one image, {image.key!r}: remove one, or "
                "number them if they mark objects of one kind (NAME_mask_1, NAME_mask_2)."
            )
        return [mask.key for mask, _ in found]


class _Index:
    """Images by their names, and by what is left of their names without the words that say that they are images."""

    def __init__(self, images: Iterable[tuple[Place, File]]) -> None:
        self._exact: dict[tuple[Place, str], list[File]] = defaultdict(list)
        self._cores: dict[tuple[Place, str], list[File]] = defaultdict(list)
        self._at: dict[Place, list[File]] = defaultdict(list)
        for place, image in images:
            self._at[place].append(image)
            self._exact[place, fold(image.stem)].append(image)
            for core in image_cores(image.stem):
                self._cores[place, fold(core)].append(image)

    def exact(self, place: Place, stem: str, mask: File) -> File | None:
        """Return the image of a name; of several that differ in case alone the one that is written so.

        Raises:
            UserError: There are several.
        """
        return self._one(self._exact.get((place, fold(stem)), []), stem, mask)

    def core(self, place: Place, base: str, mask: File) -> File | None:
        """Return the image whose name is this one and words that say that it is an image; see `exact`."""
        return self._one(self._cores.get((place, fold(base)), []), base, mask)

    def one(self, place: Place, stem: str) -> File | None:
        """Return the image of a name where there is exactly one."""
        found = self._exact.get((place, fold(stem)), []) or self._cores.get((place, fold(stem)), [])
        return found[0] if len(found) == 1 else None

    def only(self, place: Place) -> File | None:
        """Return the only image of a folder; None where there are more."""
        found = self._at.get(place, [])
        return found[0] if len(found) == 1 else None

    def _one(self, found: Sequence[File], stem: str, mask: File) -> File | None:
        if len(found) > 1:
            found = [image for image in found if image.stem == stem] or found
        if len(found) > 1:
            raise UserError(
                f"the images {found[0].key!r} and {found[1].key!r} have one name, and masks are found by it "
                f"({mask.key!r}): rename one of them."
            )
        return found[0] if found else None


def left_out(names: Sequence[str], one: str, many: str) -> list[str]:
    """Return a sentence on files that are not used; none where there are none."""
    return [f"{counted(len(names), one, many)} {was(len(names))} left out: {listed(names)}"] if names else []


def listed(names: Sequence[str]) -> str:
    """Return the first names of some."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
