"""Images with a class for every pixel: opened, checked once, and kept where they fit in memory."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.checking.findings import Finding
from paucal.data.decode import Orientation, UnreadableImage, read_orientation
from paucal.data.images import ImageSet
from paucal.data.masks.class_names import NamedClasses
from paucal.data.masks.coding import IGNORED, Coding, MaskCoding, find_coding, require_fit
from paucal.data.masks.doubts import ambiguous, interpolated, inverted, stray_values
from paucal.data.masks.measuring import FileFacts, Seen, facts_of
from paucal.data.masks.pairs import Pairs
from paucal.data.masks.pixels import read_raw
from paucal.data.stores import FileStore
from paucal.memory import available_memory
from paucal.types import UserError
from paucal.wording import counted

Report = Callable[[int, int], None]
SHARE = 0.1  # of the free memory that decoded masks may take
MOST_TIMES = 4  # the pixels of its image, beyond which a mask is not read to say that it does not fit
MOST_DISTINCT = 1 << 16  # values, beyond which masks are photographs
FEWEST = 3  # images: one to train on, one to select with, one to report on
RATIO = 0.02  # by which the shapes of a mask and its image may differ: sides are rounded when images are resized


class MaskStore:
    """Class numbers by position.

    Args:
        files: Mask files of each image; several are joined.
        sizes: (N, 2) upright heights and widths of the images.
        coding: Meaning of the values.
        kept: Decoded masks by position, where they fit in memory.
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, ...]],
        sizes: NDArray[np.int64],
        coding: MaskCoding,
        kept: dict[int, NDArray[np.uint8]] | None = None,
    ) -> None:
        self._files, self._sizes, self._coding, self._kept = files, sizes, coding, kept

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the (H, W) class numbers of an image, `IGNORED` where nobody has labelled.

        Raises:
            UserError: The file has changed since it was looked at.
        """
        if self._kept is not None:
            return self._kept[index]
        return joined([self._read(file, index) for file in self._files[index]])

    def _read(self, file: Path, index: int) -> NDArray[np.uint8]:
        height, width = map(int, self._sizes[index])
        raw = read_raw(file, file.name, MOST_TIMES * height * width)
        require_size(raw.shape, (height, width), file.name)
        values = raw.among(self._coding.kind == "colour", file.name)
        return enlarged(self._coding.encode(values, file.name), (height, width))


@dataclass(frozen=True)
class MaskedImages:
    """Images, their masks, and what the classes are.

    Attributes:
        images: Images with the classes that each one shows as its row of `multi_hot`.
        masks: Class numbers by position.
        coding: Meaning of the values in the mask files.
        pixels: (N, K) int64, the pixels of each class in each image.
        findings: What people should look at before they trust the masks.
    """

    images: ImageSet
    masks: MaskStore
    coding: MaskCoding
    pixels: NDArray[np.int64]
    findings: tuple[Finding, ...] = ()

    def doubts(self) -> list[str]:
        """Return the findings as sentences."""
        return [f"{one.text}; {one.advice}" for one in self.findings]


def image_set(pairs: Pairs, location: str) -> ImageSet:
    """Return the images of pairs as a set without classes; nothing is read yet."""
    keys = [pair.key for pair in pairs.pairs]
    return ImageSet(
        name=pairs.root.resolve().name,
        location=location,
        classes=(),
        keys=keys,
        labels=np.full(len(keys), -1, dtype=np.int64),
        declared=[pair.part for pair in pairs.pairs],
        store=FileStore(pairs.root.resolve(), keys),
        notes=pairs.notes,
    )


def with_masks(
    images: ImageSet,
    pairs: Pairs,
    wanted: Coding | None = None,
    ignore: Sequence[int] | None = None,
    named: NamedClasses | None = None,
    report: Report = lambda done, total: None,
    coding: MaskCoding | None = None,
) -> MaskedImages:
    """Look at every mask once, and choose what their values mean.

    Args:
        images: Images of the pairs, in any order; some of the pairs may have been left out since.
        pairs: Images and masks.
        wanted: What the values mean; None to tell it from them.
        ignore: Value that means "not labelled".
        named: Classes from a file.
        report: Called with (masks done, masks in all), twice over.
        coding: What the values mean, where it is known already, as in a run that goes on.

    Raises:
        UserError: A mask cannot be read, is of another size or shape than its image, or has values of no class; or
            masks have different codings.
    """
    by_key = {pair.key: pair.masks for pair in pairs.pairs}
    files, total = [by_key[key] for key in images.keys], len(images)
    sizes = np.asarray([images.store.size(index) for index in range(total)], dtype=np.int64)
    look = _look(
        files,
        [_turn(pairs.root / key, size) for key, size in zip(images.keys, sizes.tolist(), strict=True)],
        lambda done: report(done, 2 * total),
    )
    if coding is None:
        coding = find_coding(look.seen, wanted, ignore, named)
    else:
        require_fit(coding, look.seen, ignore)
    _require_joinable(files, coding)
    masks, pixels = _read_all(files, sizes, coding, lambda done: report(total + done, 2 * total))
    notes = (*images.notes, f"masks: {coding.describe()}", *_size_note(look.smaller))
    notes += (named.note,) if named is not None and named.note else ()
    found = replace(images, classes=_names(coding, named), multi_hot=(pixels > 0).astype(np.int8), notes=notes)
    told = wanted is None and named is None
    findings = (
        *(stray_values(look.seen, coding) if told else ()),
        *interpolated(look.seen, coding),
        *inverted(pixels),
        *ambiguous(look.ambiguous, images),
    )
    return MaskedImages(found, masks, coding, pixels, findings)


def _read_all(
    files: Sequence[tuple[Path, ...]], sizes: NDArray[np.int64], coding: MaskCoding, report: Callable[[int], None]
) -> tuple[MaskStore, NDArray[np.int64]]:
    """Return the masks, kept in memory where they fit, and the (N, K) pixels of each class in each."""
    roomy = int(sizes.prod(1).sum()) <= SHARE * available_memory()
    store = MaskStore(files, sizes, coding)
    pixels, kept = np.zeros((len(files), coding.count), dtype=np.int64), {}
    for index in range(len(files)):
        mask = store.read(index)
        pixels[index] = np.bincount(mask.ravel(), minlength=IGNORED + 1)[: coding.count]
        if roomy:
            kept[index] = mask
        report(index + 1)
    return MaskStore(files, sizes, coding, kept if roomy else None), pixels


def _turn(path: Path, size: Sequence[int]) -> Orientation:
    """Return the EXIF orientation of an image; arrays have none."""
    upright = (size[0], size[1])
    try:
        return replace(read_orientation(path, path.name), upright=upright)
    except UnreadableImage:
        return Orientation(1, upright, upright)


@dataclass
class _Look:
    """What one look at all masks has shown.

    Attributes:
        seen: Facts of each file.
        smaller: Names of masks that are smaller than their images.
        ambiguous: Positions of images whose size does not show whether the mask was drawn before or after their turn.
    """

    seen: Seen
    smaller: list[str]
    ambiguous: list[int]


def _look(files: Sequence[tuple[Path, ...]], turned: Sequence[Orientation], report: Callable[[int], None]) -> _Look:
    facts: list[FileFacts] = []
    values: set[int] = set()
    found = _Look(Seen(()), [], [])
    for number, (paths, turn) in enumerate(zip(files, turned, strict=True)):
        for path in paths:
            raw = read_raw(path, path.name, MOST_TIMES * math.prod(turn.upright))
            if require_size(raw.shape, turn.upright, path.name, turn.stored):
                found.smaller.append(path.name)
            facts.append(facts_of(raw, path.name))
            values |= facts[-1].values
            if len(values) > MOST_DISTINCT:
                raise UserError(
                    f"the masks have more than {MOST_DISTINCT:,} different values ({path.name} is one of them): they "
                    "are photographs, or stored with loss; give masks with one value for each class."
                )
        if turn.is_ambiguous and read_orientation(paths[0], paths[0].name).value == 1:
            found.ambiguous.append(number)
        report(number + 1)
    found.seen = Seen(tuple(facts))
    return found


def require_enough(masked: MaskedImages) -> None:
    """Refuse masks of fewer images than training needs.

    Raises:
        UserError: Fewer than three have labelled pixels.
    """
    labelled = int((masked.pixels.sum(1) > 0).sum())
    if labelled < FEWEST:
        raise UserError(
            f"{counted(labelled, 'image')} with labelled pixels: expected {FEWEST} or more, to train on, to choose "
            "with and to report on."
        )


def joined(masks: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return the masks of one image as one: marked where any marks, else not labelled where any is not.

    Args:
        masks: (H, W) class numbers of two classes.
    """
    if len(masks) == 1:
        return masks[0]
    stacked = np.stack(masks)
    unmarked = np.where((stacked == IGNORED).any(0), IGNORED, 0)
    return np.where((stacked == 1).any(0), 1, unmarked).astype(np.uint8)


def _require_joinable(files: Sequence[tuple[Path, ...]], coding: MaskCoding) -> None:
    """Refuse several masks of one image where they have more classes than a background and what is marked.

    Raises:
        UserError: They have more.
    """
    several = next((paths for paths in files if len(paths) > 1), None)
    if several and (coding.count != 2 or coding.values[0] != 0):
        raise UserError(
            f"{several[0].name} and {several[1].name} are masks of one image, and masks have {coding.count} classes "
            f"({coding.describe()}): masks of two classes, marked and not, can be joined; give one mask for each image."
        )


def require_size(
    mask: tuple[int, int], image: tuple[int, int], name: str, stored: tuple[int, int] | None = None
) -> bool:
    """Return whether a mask has to be enlarged to its image.

    Args:
        mask: (height, width).
        image: (height, width) as it is seen.
        name: of the mask.
        stored: (height, width) of the image before its EXIF tag turns it; None for the same.

    Raises:
        UserError: it is larger than its image, or of another shape.
    """
    if tuple(mask) == tuple(image):
        return False
    same = abs(mask[0] / mask[1] / (image[0] / image[1]) - 1) <= RATIO
    if same and mask[0] <= image[0] and mask[1] <= image[1]:
        return True
    if stored is not None and tuple(mask) == tuple(stored):
        raise UserError(
            f"mask {name} has {mask[0]}x{mask[1]} pixels (height x width) and its image {image[0]}x{image[1]} once its "
            "EXIF tag turns it: the mask was drawn before the turn; store the image upright, or without the tag."
        )
    words = "is turned, or of another image" if mask[::-1] == tuple(image) else "is of another size"
    raise UserError(
        f"mask {name} has {mask[0]}x{mask[1]} pixels (height x width) and its image {image[0]}x{image[1]}: it {words}; "
        "give a mask of the image's size, or a smaller one of its shape."
    )


def enlarged(mask: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a mask at the size of its image, by the nearest pixel."""
    if mask.shape == size:
        return mask
    return np.asarray(Image.fromarray(mask).resize((size[1], size[0]), Image.Resampling.NEAREST))


def _names(coding: MaskCoding, named: NamedClasses | None) -> tuple[str, ...]:
    if named is not None:
        return named.names
    if coding.kind == "binary":
        return ("background", "foreground")
    if coding.kind == "colour":
        return tuple(f"#{value:06x}" for value in coding.values)
    return tuple(f"class {value}" if coding.kind == "index" else f"grey {value}" for value in coding.values)


def _size_note(smaller: Sequence[str]) -> list[str]:
    if not smaller:
        return []
    words = counted(len(smaller), "mask is smaller than its image", "masks are smaller than their images")
    return [f"{words} and brought to its size by the nearest pixel ({smaller[0]}{', ...' if smaller[1:] else ''})"]
