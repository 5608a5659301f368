"""Matching of masks to images by their names alone."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from paucal.data.masks.naming import (
    MaskName,
    fold,
    image_bases,
    is_decoy_folder,
    is_decoy_name,
    object_name,
    parse_counted_name,
    parse_mask_name,
    parse_numbered_name,
    shorter_names,
    without_suffix,
)
from paucal.data.splits.part_names import PARTS
from paucal.types import UserError
from paucal.wording import counted, first_few, was

MAX_NAMES_SHOWN = 5  # in a message
FOLDER = "folder"  # `MaskName.kind` of masks in a folder for one image
Place = tuple[str, ...]
ImageAndName = tuple["File", MaskName]  # the image of a mask, and the parsed name of the mask


@dataclass(frozen=True)
class File:
    """An image or mask file, with its name and folders in the form in which files are compared.

    Attributes:
        key: Path relative to the searched folder, with forward slashes.
        place: Names of its folders in folded form (`naming.fold`), without folders named after images or masks.
        stem: File name without suffix, in Unicode's form NFC.
        part: "train", "val" or "test" from the names of its folders; "" for none.
    """

    key: str
    place: Place
    stem: str
    part: str = ""


@dataclass(frozen=True)
class Matches:
    """The masks of each image, and the files without a match.

    Attributes:
        masks: Keys of the masks of each image, by the key of the image.
        unmatched_images: Keys of images without a mask.
        unmatched_masks: Keys of masks without an image.
        decoys: Keys of other files beside the masks: pictures of masks, and labels of another kind.
    """

    masks: dict[str, list[str]] = field(default_factory=dict)
    unmatched_images: list[str] = field(default_factory=list)
    unmatched_masks: list[str] = field(default_factory=list)
    decoys: list[str] = field(default_factory=list)

    def notes(self, by_class: bool = False) -> list[str]:
        """Return sentences on files that are left out and, unless masks are `by_class`, on masks that are joined."""
        notes = [
            *describe_left_out(self.unmatched_images, "image without a mask", "images without masks"),
            *describe_left_out(self.unmatched_masks, "mask without an image", "masks without images"),
            *describe_left_out(self.decoys, "file beside the masks", "files beside the masks"),
        ]
        with_several = [key for key, masks in self.masks.items() if len(masks) > 1]
        if with_several and not by_class:
            text = counted(len(with_several), "image has", "images have")
            examples = f"{first_few(self.masks[with_several[0]])} of {with_several[0]}"
            notes.append(
                f"{text} several masks, which are joined: a pixel that any of them marks is marked ({examples})"
            )
        return notes


def match(images: Sequence[File], masks: Sequence[File]) -> Matches:
    """Find the masks of each image by their names.

    Raises:
        UserError: A mask may belong to several images, or an image has several masks that are not numbered.
    """
    return _Matching(images, masks).run()


class _Matching:
    """A search that applies the most certain naming rules first; later rules see which images already have masks."""

    def __init__(self, images: Sequence[File], masks: Sequence[File]) -> None:
        self._images, self._masks = images, masks
        self._index = _Index((image.place, image) for image in images)
        self._anywhere = _Index(((), image) for image in images)
        self._assigned: dict[str, list[tuple[File, MaskName]]] = {}

    def run(self) -> Matches:
        name_rules = (self._find_exact, self._find_worded, self._find_numbered, self._find_counted)
        remaining = self.search((*name_rules, self._find_in_folder))
        remaining = self._search_other_folders(remaining)
        self._refuse_classes()
        decoys = [mask for mask in remaining if self._is_decoy(mask)]
        unmatched = [mask for mask in remaining if not self._is_decoy(mask)]
        for mask in unmatched:
            self._refuse_second_mask(mask)
        self._refuse_unseparated_counts(unmatched)
        masks_by_image = {
            image.key: self._ordered_masks(image, decoys) for image in self._images if image.key in self._assigned
        }
        without_masks = [image.key for image in self._images if image.key not in self._assigned]
        return Matches(
            masks_by_image, without_masks, [mask.key for mask in unmatched], sorted(mask.key for mask in decoys)
        )

    def search(self, finders: Iterable[Callable[[File], ImageAndName | None]]) -> list[File]:
        """Assign masks to images by each finder in turn; return the masks that remain without an image."""
        remaining = list(self._masks)
        for find in finders:
            hits = [(mask, find(mask)) for mask in remaining]  # all masks are looked up before any is assigned
            for mask, hit in hits:
                if hit is not None:
                    self._assigned.setdefault(hit[0].key, []).append((mask, hit[1]))
            remaining = [mask for mask, hit in hits if hit is None]
        return remaining

    def _find_exact(self, mask: File) -> ImageAndName | None:
        image = self._index.exact(mask.place, mask.stem, mask)
        return image and (image, MaskName(mask.stem))

    def _find_worded(self, mask: File) -> ImageAndName | None:
        """Find the image `a` for the mask `a_mask` or `a.jpg`, `a_sat` for `a_mask`, `img_1` for `mask_1` or `1`."""
        return self._find_first(mask, [*parse_mask_name(mask.stem), MaskName(mask.stem)])

    def _find_numbered(self, mask: File) -> ImageAndName | None:
        """Find the image `a` for the mask `a_mask_1`, or `a_1` if it has no mask yet; refuse the mask if both exist."""
        hits = [hit for name in parse_numbered_name(mask.stem) if (hit := self._find_first(mask, [name]))]
        hits = [(image, name) for image, name in hits if name.number or image.key not in self._assigned]
        if len({image.key for image, _ in hits}) > 1:
            raise UserError(
                f"the mask {mask.key!r} may belong to {hits[0][0].key!r} or to {hits[-1][0].key!r}: rename it so that "
                "it begins with the full name of its image."
            )
        return hits[0] if hits else None

    def _find_counted(self, mask: File) -> ImageAndName | None:
        """Find the image `a` for the masks `a_1` and `a_2`, if no mask in the set has exactly the name of an image."""
        name = parse_counted_name(mask.stem)
        return None if name is None or self._assigned else self._find_first(mask, [name])

    def _find_in_folder(self, mask: File) -> ImageAndName | None:
        """Find the only image of a folder for all masks in it (`7/images/7.png`, `7/masks/*`), or `7.png` for `7/*`."""
        if not mask.place or mask.place[-1] in PARTS or self._is_decoy(mask):
            return None
        image = self._index.only(mask.place) or self._index.exact(mask.place[:-1], mask.place[-1], mask)
        if image is None or any(not name.number for _, name in self._assigned.get(image.key, ())):
            return None
        return image, MaskName(image.stem, FOLDER, fold(mask.stem))

    def _search_other_folders(self, masks: Sequence[File]) -> list[File]:
        """Find images for masks whose folders are nested differently, by file names that only one image has."""
        names = Counter(fold(image.stem) for image in self._images)
        flat_images = [replace(image, place=()) for image in self._images if names[fold(image.stem)] == 1]
        inner = _Matching(flat_images, [replace(mask, place=()) for mask in masks if not self._is_decoy(mask)])
        name_rules = [inner._find_exact, inner._find_worded, inner._find_numbered]
        inner.search(name_rules if self._assigned else [*name_rules, inner._find_counted])
        folders = {mask.key: mask.place for mask in self._masks}
        for key, hits in inner._assigned.items():
            all_masks = [mask for mask, _ in [*self._assigned.get(key, ()), *hits]]
            if len({folders[mask.key] for mask in all_masks}) > 1:
                raise UserError(
                    f"{all_masks[0].key!r} and {all_masks[-1].key!r} are masks of {key!r} in two folders: join them "
                    "into one file for each image, with a value for each class, or name one folder with --masks."
                )
            self._assigned.setdefault(key, []).extend(hits)
        assigned = {mask.key for hits in inner._assigned.values() for mask, _ in hits}
        return [mask for mask in masks if mask.key not in assigned]

    def _find_first(self, mask: File, names: Iterable[MaskName]) -> ImageAndName | None:
        """Return the image of the first of several parses of a mask's name for which there is an image."""
        for name in names:
            for base in dict.fromkeys((name.base, without_suffix(name.base))):
                image = self._index.exact(mask.place, base, mask) or self._index.stripped(mask.place, base, mask)
                if image is not None:
                    return image, name
        return None

    def _is_decoy(self, mask: File) -> bool:
        return is_decoy_name(mask.stem) or any(is_decoy_folder(name) for name in mask.place)

    def _refuse_second_mask(self, mask: File) -> None:
        """Refuse an unmatched mask whose name begins with the name of an image that already has another mask."""
        for base in shorter_names(mask.stem):
            image = self._index.exact(mask.place, base, mask) or self._anywhere.one((), base)
            if image is not None and image.key in self._assigned:
                first = self._assigned[image.key][0][0]
                raise UserError(
                    f"the mask {mask.key!r} is named after {image.key!r}, which has the mask {first.key!r}: number "
                    f"both if they mark objects of one class ({base}_mask_1, {base}_mask_2), else move one out of the "
                    "folder."
                )

    def _refuse_unseparated_counts(self, unmatched: Sequence[File]) -> None:
        """Refuse masks that are named like half the images with a number appended (mask `a072` of image `a07`)."""
        images = {(image.place, fold(image.stem)): image for image in self._images if image.key in self._assigned}
        pairs_by_count: dict[str, list[tuple[File, File]]] = defaultdict(list)
        for mask in unmatched:
            for cut in range(1, len(mask.stem)):
                if mask.stem[cut:].isdigit() and (image := images.get((mask.place, fold(mask.stem[:cut])))):
                    pairs_by_count[mask.stem[cut:]].append((mask, image))
        for count, pairs in pairs_by_count.items():
            if len(pairs) > max(1, len(images) / 2):
                mask, image = pairs[0]
                raise UserError(
                    f"the mask {mask.key!r} has no image of the same name. {counted(len(pairs), 'mask')} like it "
                    f"end in {count!r} after the name of an image, here {image.key!r}: if it is a further mask of that "
                    f"image, rename it {image.stem}_mask_{count}; else move masks without an image out of the folder."
                )

    def _refuse_classes(self) -> None:
        """Refuse masks in a folder per image with names like classes (`7/masks/liver.png`, `7/masks/spleen.png`)."""
        images_of: dict[str, set[str]] = defaultdict(set)
        for key, hits in self._assigned.items():
            for mask, parsed in hits:
                if parsed.kind == FOLDER and (name := object_name(mask.stem)):
                    images_of[name].add(key)
        names = sorted(name for name, keys in images_of.items() if len(keys) > 1)
        if len(names) > 1:
            listed_names = ", ".join(map(repr, names[:MAX_NAMES_SHOWN]))
            raise UserError(
                f"the masks of each image are in a folder, named like classes, {listed_names}: join them "
                "into one file for each image, with a value for each class."
            )

    def _ordered_masks(self, image: File, decoys: list[File]) -> list[str]:
        """Return the keys of an image's masks in order; masks in a second coding are added to `decoys` instead."""
        hits = self._assigned[image.key]
        kinds = {name.kind for _, name in hits}
        if len(kinds) > 1 and all(kind.endswith("ids") for kind in kinds):  # Cityscapes' labelIds and labelTrainIds
            decoys += [mask for mask, name in hits if "train" not in name.kind]
            hits = [(mask, name) for mask, name in hits if "train" in name.kind]
        hits = sorted(hits, key=lambda hit: (len(hit[1].number), hit[1].number, hit[0].key))
        names = {(name.kind, name.number) for _, name in hits}
        if len(hits) > 1 and (len(names) < len(hits) or len({kind for kind, _ in names}) > 1):
            raise UserError(
                f"{hits[0][0].key!r} and {hits[1][0].key!r} belong to one image, {image.key!r}: remove one, or number "
                "them if they mark objects of one class (NAME_mask_1, NAME_mask_2)."
            )
        return [mask.key for mask, _ in hits]


class _Index:
    """Index of images by folder and file name, with and without words such as "image" in the name."""

    def __init__(self, images: Iterable[tuple[Place, File]]) -> None:
        self._exact: dict[tuple[Place, str], list[File]] = defaultdict(list)
        self._stripped: dict[tuple[Place, str], list[File]] = defaultdict(list)
        self._at: dict[Place, list[File]] = defaultdict(list)
        for place, image in images:
            self._at[place].append(image)
            self._exact[place, fold(image.stem)].append(image)
            for base in image_bases(image.stem):
                self._stripped[place, fold(base)].append(image)

    def exact(self, place: Place, stem: str, mask: File) -> File | None:
        """Return the image with a name; if several names differ only in case, the image with the same case."""
        return self._single_image(self._exact.get((place, fold(stem)), []), stem, mask)

    def stripped(self, place: Place, base: str, mask: File) -> File | None:
        """Return the image whose name without words such as "image" is `base`; see `exact`."""
        return self._single_image(self._stripped.get((place, fold(base)), []), base, mask)

    def one(self, place: Place, stem: str) -> File | None:
        """Return the image with a name, with or without words such as "image"; None if there is not exactly one."""
        images = self._exact.get((place, fold(stem)), []) or self._stripped.get((place, fold(stem)), [])
        return images[0] if len(images) == 1 else None

    def only(self, place: Place) -> File | None:
        """Return the image of a folder that contains exactly one image, else None."""
        images = self._at.get(place, [])
        return images[0] if len(images) == 1 else None

    def _single_image(self, images: Sequence[File], stem: str, mask: File) -> File | None:
        if len(images) > 1:
            images = [image for image in images if image.stem == stem] or images
        if len(images) > 1:
            raise UserError(
                f"the images {images[0].key!r} and {images[1].key!r} have the same name, and masks are matched by name "
                f"({mask.key!r}): rename one of them."
            )
        return images[0] if images else None


def describe_left_out(names: Sequence[str], one: str, many: str) -> list[str]:
    """Return a sentence on files that are left out, in a list; the list is empty if `names` is empty."""
    return [f"{counted(len(names), one, many)} {was(len(names))} left out: {first_few(names)}"] if names else []
