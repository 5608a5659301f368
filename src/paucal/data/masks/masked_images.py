"""Images with a class for every pixel: opened, checked once, and kept where they fit in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.images import ImageSet
from paucal.data.masks.class_names import NamedClasses
from paucal.data.masks.coding import IGNORED, Coding, MaskCoding, Seen, find_coding
from paucal.data.masks.pairs import Pair, Pairs
from paucal.data.masks.pixels import COLOUR, PALETTE, distinct, read_raw
from paucal.data.sources.folder import PARTS
from paucal.data.sources.stores import FileStore
from paucal.memory import available_memory
from paucal.types import UserError
from paucal.wording import counted

Report = Callable[[int, int], None]
SHARE = 0.1  # of the free memory that decoded masks may take
MOST_TIMES = 4  # the pixels of its image, beyond which a mask is not read to say that it does not fit
MOST_DISTINCT = 1 << 16  # values, beyond which masks are photographs
RATIO = 0.02  # by which the shapes of a mask and its image may differ: sides are rounded when images are resized


class MaskStore:
    """Class numbers by position.

    Args:
        files: of the masks.
        names: of their images, for messages.
        sizes: (N, 2) upright heights and widths of the images.
        coding: of the values.
        kept: decoded masks by position, where they fit in memory.
    """

    def __init__(
        self,
        files: Sequence[Path],
        names: Sequence[str],
        sizes: NDArray[np.int64],
        coding: MaskCoding,
        kept: dict[int, NDArray[np.uint8]] | None = None,
    ) -> None:
        self._files, self._names, self._sizes, self._coding, self._kept = files, names, sizes, coding, kept

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the (H, W) class numbers of an image, `IGNORED` where nobody has labelled.

        Raises:
            UserError: the file has changed since it was looked at.
        """
        if self._kept is not None:
            return self._kept[index]
        name = str(self._files[index].name)
        height, width = map(int, self._sizes[index])
        raw = read_raw(self._files[index], name, MOST_TIMES * height * width)
        require_size(raw.shape, (height, width), name)
        values = raw.among(self._coding.kind == "colour", name)
        return enlarged(self._coding.encode(values, name), (height, width))


@dataclass(frozen=True)
class MaskedImages:
    """Images, their masks, and what the classes are.

    Attributes:
        images: with the classes that each image shows as its row of `multi_hot`.
        masks: class numbers by position.
        coding: of the mask files.
        pixels: (N, K) int64, the pixels of each class in each image.
    """

    images: ImageSet
    masks: MaskStore
    coding: MaskCoding
    pixels: NDArray[np.int64]


def image_set(pairs: Pairs, location: str) -> ImageSet:
    """Return the images of pairs as a set without classes; nothing is read yet."""
    keys = [pair.key for pair in pairs.pairs]
    declared = [next((PARTS[p] for p in Path(key).parts[:-1] if p in PARTS), "") for key in keys]
    declared = declared if all(declared) else [""] * len(keys)
    return ImageSet(
        name=pairs.root.resolve().name,
        location=location,
        classes=(),
        keys=keys,
        labels=np.full(len(keys), -1, dtype=np.int64),
        declared=declared,
        store=FileStore(pairs.root.resolve(), keys),
        notes=pairs.notes,
    )


def with_masks(
    images: ImageSet,
    pairs: Sequence[Pair],
    wanted: Coding | None = None,
    ignore: Sequence[int] | None = None,
    named: NamedClasses | None = None,
    report: Report = lambda done, total: None,
    coding: MaskCoding | None = None,
) -> MaskedImages:
    """Look at every mask once, and choose what their values mean.

    Args:
        images: of the pairs, in any order; those of pairs may have been left out since.
        pairs: of images and masks.
        wanted: what the values mean; None to tell it from them.
        ignore: value that means "not labelled".
        named: classes from a file.
        report: called with (masks done, masks in all), twice over.
        coding: what the values mean, where it is known already, as in a run that goes on.

    Raises:
        UserError: a mask cannot be read, is of another size or shape than its image, or has values of no class.
    """
    files = {pair.key: pair.mask for pair in pairs}
    paths, total = [files[key] for key in images.keys], len(images)
    sizes = np.asarray([images.store.size(index) for index in range(total)], dtype=np.int64)
    seen, smaller = _look(paths, sizes, lambda done: report(done, 2 * total))
    coding = coding or find_coding(seen, wanted, ignore, named)
    names = _names(coding, named)
    roomy = int(sizes.prod(1).sum()) <= SHARE * available_memory()
    store = MaskStore(paths, list(images.keys), sizes, coding)
    pixels, kept = np.zeros((total, coding.count), dtype=np.int64), {}
    for index in range(total):
        mask = store.read(index)
        pixels[index] = np.bincount(mask.ravel(), minlength=IGNORED + 1)[: coding.count]
        if roomy:
            kept[index] = mask
        report(total + index + 1, 2 * total)
    notes = [*images.notes, f"masks: {coding.describe()}", *_size_note(smaller)]
    found = replace(images, classes=names, multi_hot=(pixels > 0).astype(np.int8), notes=tuple(notes))
    masks = MaskStore(paths, list(images.keys), sizes, coding, kept if roomy else None)
    return MaskedImages(found, masks, coding, pixels)


def _look(paths: Sequence[Path], sizes: NDArray[np.int64], report: Callable[[int], None]) -> tuple[Seen, list[str]]:
    """Return the values of all masks, and the names of those that are smaller than their images."""
    grey: set[int] = set()
    colours: set[int] = set()
    palette, lossy, deep, smaller = False, "", "", []
    for number, (path, size) in enumerate(zip(paths, sizes.tolist(), strict=True)):
        raw = read_raw(path, path.name, MOST_TIMES * size[0] * size[1])
        if require_size(raw.shape, (size[0], size[1]), path.name):
            smaller.append(path.name)
        (colours if raw.kind == COLOUR else grey).update(distinct(raw.values).tolist())
        if max(len(grey), len(colours)) > MOST_DISTINCT:
            raise UserError(
                f"the masks have more than {MOST_DISTINCT:,} different values ({path.name} is one of them): they are "
                "photographs, or stored with loss; give masks with one value for each class."
            )
        palette = palette or raw.kind == PALETTE
        lossy, deep = lossy or (path.name if raw.lossy else ""), deep or (path.name if raw.bits == 16 else "")
        report(number + 1)
    values = {value * 0x010101 for value in grey if value < 256} | colours if colours else grey
    return Seen(tuple(sorted(values)), bool(colours), palette and not colours, lossy, deep), smaller


def require_size(mask: tuple[int, int], image: tuple[int, int], name: str) -> bool:
    """Return whether a mask has to be enlarged to its image.

    Args:
        mask: (height, width).
        image: (height, width).
        name: of the mask.

    Raises:
        UserError: it is larger than its image, or of another shape.
    """
    if tuple(mask) == tuple(image):
        return False
    same = abs(mask[0] / mask[1] / (image[0] / image[1]) - 1) <= RATIO
    if same and mask[0] <= image[0] and mask[1] <= image[1]:
        return True
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
