"""Images with segmentation masks; all masks are read and checked at the start, and kept in memory if they fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.checking.findings import Finding, as_groups
from paucal.data.decode import Orientation, UnreadableImage, ambiguity_note, read_orientation
from paucal.data.images import ImageSet
from paucal.data.masks.coding import IGNORED, CodingKind, MaskCoding, NamedClasses
from paucal.data.masks.mask_files import FileStatistics, MaskStatistics, compute_file_statistics, read_mask
from paucal.data.masks.meaning import UncodedMasks, classes_from_files, classes_from_values
from paucal.data.masks.pairs import ImageMaskPairs
from paucal.data.stores import FileStore
from paucal.data.unreadable import ReportProgress
from paucal.memory import read_available_memory
from paucal.types import UserError
from paucal.wording import counted, join_first_few

MAX_MEMORY_FRACTION = 0.1  # fraction of the free memory that decoded masks may use
MAX_SIZE_RATIO = 4  # a mask with more than this many times the pixels of its image is not decoded
MAX_VALUES = 1 << 16  # masks with more different values than this are refused as photographs
MIN_IMAGES = 3  # minimum number of images: one for training, one for validation and one for test
MAX_ASPECT_ERROR = 0.02  # maximum relative difference between the aspect ratios of mask and image

# Names of findings.
STRAY_VALUES, TURNED_IMAGES, INVERTED, RESIZED = "stray-values", "turned-images", "perhaps-inverted", "perhaps-resized"
MIN_STEPS = 10  # an interpolated mask has at least this many pixels with values between those of their neighbours
PIXELS_PER_STRAY = 10_000  # a value is a stray value if at most 1 in this many pixels has the value
# Some masks may be inverted if the second class covers at most the fraction `SMALL_COVER` of some images, and at least
# the fraction `LARGE_COVER` of all other images.
SMALL_COVER, LARGE_COVER = 0.35, 0.65
MIN_GROUP_FRACTION = 0.25  # minimum fraction of the masks with small cover, and of those with large cover


@dataclass(frozen=True, eq=False)
class MaskStore:
    """The masks of N images, which are read by the position of the image."""

    files: Sequence[tuple[Path, ...]]  # mask files of each image; several masks of an image are joined
    sizes: NDArray[np.int64]  # (N, 2) heights and widths of the upright images
    coding: MaskCoding  # coding of the mask files
    # Number of the class that each mask file of each image marks; None if the values in the files give the classes.
    class_numbers: Sequence[tuple[int, ...]] | None = None
    # (H, W) class numbers by the position of the image; None to decode the files on each access.
    decoded_masks: dict[int, NDArray[np.uint8]] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the (H, W) class numbers of an image; `IGNORED` for unlabelled pixels."""
        return self.read_files(index)[0] if self.decoded_masks is None else self.decoded_masks[index]

    def read_files(self, index: int) -> tuple[NDArray[np.uint8], bool]:
        """Read the masks of an image; return the (H, W) class numbers, and whether masks of two classes overlap."""
        masks = [self._read_file(file, index) for file in self.files[index]]
        if self.class_numbers is None:
            return join_binary_masks(masks), False
        return join_class_masks(masks, self.class_numbers[index])

    def _read_file(self, file: Path, index: int) -> NDArray[np.uint8]:
        height, width = map(int, self.sizes[index])
        raw = read_mask(file, file.name, MAX_SIZE_RATIO * height * width)
        check_mask_size(raw.shape, (height, width), file.name)  # raises a UserError if the size is wrong
        mask = self.coding.encode(raw.convert_values(self.coding.kind == "colour", file.name), file.name)
        if mask.shape == (height, width):
            return mask
        return np.asarray(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))


@dataclass(frozen=True)
class MaskedImages:
    """N images with their masks and K classes."""

    images: ImageSet  # `multi_hot` marks the classes that occur in each image
    masks: MaskStore
    # Coding of the masks; if each class has its own mask files, coding of the joined masks of class numbers.
    coding: MaskCoding
    class_pixel_counts: NDArray[np.int64]  # (N, K) number of pixels of each class in each image
    findings: tuple[Finding, ...] = ()  # possible mistakes in the masks

    def describe_findings(self) -> list[str]:
        """Return the findings as sentences."""
        return [f"{finding.text}; {finding.advice}" for finding in self.findings]


def images_of_pairs(pairs: ImageMaskPairs, location: str) -> ImageSet:
    """Return the images of `pairs` as an unlabelled set, without reading the images."""
    root, keys, declared = pairs.root.resolve(), [pair.key for pair in pairs.pairs], [pair.part for pair in pairs.pairs]
    labels = np.full(len(keys), -1, dtype=np.int64)
    return ImageSet(root.name, location, (), keys, labels, declared, FileStore(root, keys), notes=pairs.notes)


def read_masks(
    images: ImageSet,
    pairs: ImageMaskPairs,
    requested_kind: CodingKind | None = None,
    ignore: Sequence[int] | None = None,
    named_classes: NamedClasses | None = None,
    report_progress: ReportProgress = lambda done, total: None,
    coding: MaskCoding | None = None,
) -> MaskedImages:
    """Read every mask twice: first to choose the coding, then to count the pixels of each class.

    Args:
        images: Images of `pairs` in any order.
        pairs: All images with their masks.
        requested_kind: Kind of coding that the user gave, if any.
        ignore: Grey value or (red, green, blue) that means "not labelled", if the user gave one.
        named_classes: Classes from --classes, if given.
        report_progress: Called with counts in which each image counts twice.
        coding: Coding of a run or model, which is then used; None to choose the coding.
    """
    pairs_by_key = {pair.key: pair for pair in pairs.pairs}
    files, total = [pairs_by_key[key].masks for key in images.keys], len(images)
    sizes = np.asarray([images.store.size(index) for index in range(total)], dtype=np.int64)
    paths = [pairs.root / key for key in images.keys]
    stats, smaller_masks, ambiguous = _measure_files(files, paths, sizes, lambda done: report_progress(done, 2 * total))
    file_classes = [pairs_by_key[key].classes for key in images.keys]
    uncoded_masks = UncodedMasks(stats, pairs, requested_kind, ignore, named_classes, coding)
    if any(file_classes):
        mask_classes = classes_from_files(uncoded_masks, file_classes)
    else:
        mask_classes = classes_from_values(uncoded_masks)
    coding, named_classes, mask_notes = mask_classes.coding, mask_classes.named_classes, mask_classes.notes
    several_masks = next((paths for paths in files if len(paths) > 1), None)
    if mask_classes.class_numbers is None and several_masks and (coding.count != 2 or coding.values[0] != 0):
        raise UserError(
            f"{several_masks[0].name} and {several_masks[1].name} are masks of one image, but the masks have "
            f"{coding.count} classes ({coding.describe()}), and only masks of two classes can be joined: give one mask "
            "for each image."
        )
    store = MaskStore(files, sizes, mask_classes.file_coding, mask_classes.class_numbers)
    masks, pixels, overlaps = _decode_masks(
        store, sizes, coding.count, lambda done: report_progress(total + done, 2 * total)
    )
    if overlaps:
        text = counted(len(overlaps), "image has pixels", "images have pixels")
        example = images.keys[overlaps[0]]
        mask_notes.append(f"{text} marked by several classes, such as {example}: the last class is used")
    notes = [*images.notes, f"masks: {coding.describe()}", *mask_notes]
    if smaller_masks:
        text = counted(len(smaller_masks), "mask is smaller than its image", "masks are smaller than their images")
        examples = smaller_masks[0] + (", ..." if smaller_masks[1:] else "")
        notes.append(f"{text} and enlarged with nearest-neighbour interpolation ({examples})")
    if named_classes is not None and named_classes.note:
        notes.append(named_classes.note)
    findings = (
        *(find_stray_values(stats, coding) if requested_kind is None and named_classes is None else ()),
        *(find_interpolated_masks(stats, coding) if mask_classes.class_numbers is None else ()),
        *find_inverted_masks(pixels),
        *find_rotated_images(ambiguous, images),
    )
    classes = _class_names(coding) if named_classes is None else named_classes.names
    multi_hot = (pixels > 0).astype(np.int8)
    images = replace(images, classes=classes, multi_hot=multi_hot, notes=tuple(notes))
    return MaskedImages(images, masks, coding, pixels, findings)


def _measure_files(
    files: Sequence[tuple[Path, ...]], images: Sequence[Path], sizes: NDArray[np.int64], report: Callable[[int], None]
) -> tuple[MaskStatistics, list[str], list[int]]:
    """Count the values in all masks, and compare the sizes of the masks with the (N, 2) sizes of the upright images.

    Also return the names of the masks that are smaller than their images, and the positions of the images whose size
    does not show whether the mask was drawn before or after the EXIF rotation.
    """
    stats: list[FileStatistics] = []
    smaller: list[str] = []
    ambiguous: list[int] = []
    values: set[int] = set()
    for index, (paths, image, (height, width)) in enumerate(zip(files, images, sizes.tolist(), strict=True)):
        try:
            orientation = replace(read_orientation(image, image.name), upright_size=(height, width))
        except UnreadableImage:  # NumPy files have no orientation
            orientation = Orientation(1, (height, width), (height, width))
        for path in paths:
            raw = read_mask(path, path.name, MAX_SIZE_RATIO * height * width)
            if check_mask_size(raw.shape, (height, width), path.name, orientation.stored_size):
                smaller.append(path.name)
            stats.append(compute_file_statistics(raw, path.name))
            values |= stats[-1].values
            if len(values) > MAX_VALUES:
                raise UserError(
                    f"the masks have more than {MAX_VALUES:,} different values (one of the masks is {path.name}), so "
                    "they are photographs, or are in a lossy format: give masks with one value for each class."
                )
        if orientation.is_ambiguous and read_orientation(paths[0], paths[0].name).value == 1:
            ambiguous.append(index)
        report(index + 1)
    return MaskStatistics(tuple(stats)), smaller, ambiguous


def check_mask_size(
    mask_size: tuple[int, int],
    image_size: tuple[int, int],
    name: str,
    stored_size: tuple[int, int] | None = None,
) -> bool:
    """Return whether a mask is smaller than its upright image; refuse larger masks, and other aspect ratios.

    `stored_size` is the size of the image before its EXIF rotation; None if equal to `image_size`.
    """
    if tuple(mask_size) == tuple(image_size):
        return False
    (height, width), (image_height, image_width) = mask_size, image_size
    has_same_ratio = abs(height / width / (image_height / image_width) - 1) <= MAX_ASPECT_ERROR
    if has_same_ratio and height <= image_height and width <= image_width:
        return True
    if stored_size is not None and tuple(mask_size) == tuple(stored_size):
        raise UserError(
            f"mask {name} has {height}x{width} pixels (height x width), but its image has {image_height}x{image_width} "
            "after the rotation of the EXIF tag: the mask was drawn before the rotation. Store the image upright, or "
            "without the tag."
        )
    is_rotated = mask_size[::-1] == tuple(image_size)
    problem = "is rotated, or belongs to another image" if is_rotated else "has a different size"
    raise UserError(
        f"mask {name} has {height}x{width} pixels (height x width), but its image has {image_height}x{image_width}: "
        f"the mask {problem}. Give a mask of the image's size, or a smaller mask with the image's aspect ratio."
    )


def join_binary_masks(masks: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Join (H, W) masks of two classes: 1 where any mask is 1, else `IGNORED` where any mask is `IGNORED`, else 0."""
    if len(masks) == 1:
        return masks[0]
    stacked = np.stack(masks)
    unmarked = np.where((stacked == IGNORED).any(0), IGNORED, 0)
    return np.where((stacked == 1).any(0), 1, unmarked).astype(np.uint8)


def join_class_masks(
    masks: Sequence[NDArray[np.uint8]], class_numbers: Sequence[int]
) -> tuple[NDArray[np.uint8], bool]:
    """Join masks of one class each, the highest class last; return class numbers, and whether masks overlap."""
    stacked = np.stack(masks)
    mask = np.where((stacked == IGNORED).any(0), IGNORED, 0).astype(np.uint8)
    for index in np.argsort(class_numbers):
        mask[stacked[index] == 1] = class_numbers[index]
    return mask, bool(((stacked == 1).sum(0) > 1).any())


def _decode_masks(
    store: MaskStore, sizes: NDArray[np.int64], n_classes: int, report: Callable[[int], None]
) -> tuple[MaskStore, NDArray[np.int64], list[int]]:
    """Decode all masks, and keep them in memory if they fit.

    Also return the (N, K) number of pixels of each class in each image, and the positions of images in which masks of
    several classes overlap.
    """
    fits = int(sizes.prod(1).sum()) <= MAX_MEMORY_FRACTION * read_available_memory()
    pixels, decoded_masks, overlaps = np.zeros((len(store), n_classes), dtype=np.int64), {}, []
    for index in range(len(store)):
        mask, is_overlapping = store.read_files(index)
        overlaps += [index] if is_overlapping else []
        pixels[index] = np.bincount(mask.ravel(), minlength=IGNORED + 1)[:n_classes]
        if fits:
            decoded_masks[index] = mask
        report(index + 1)
    return replace(store, decoded_masks=decoded_masks) if fits else store, pixels, overlaps


def _class_names(coding: MaskCoding) -> tuple[str, ...]:
    if coding.kind == "binary":
        return ("background", "foreground")
    if coding.kind == "colour":
        return tuple(f"#{value:06x}" for value in coding.values)
    return tuple(f"class {value}" if coding.kind == "index" else f"grey {value}" for value in coding.values)


def require_enough_images(masked: MaskedImages) -> None:
    """Raise a UserError unless at least 3 images have labelled pixels."""
    labelled = int((masked.class_pixel_counts.sum(1) > 0).sum())
    if labelled < MIN_IMAGES:
        raise UserError(
            f"{counted(labelled, 'image has', 'images have')} labelled pixels; expected {MIN_IMAGES} or more images, "
            "for training, validation and test."
        )


def find_stray_values(stats: MaskStatistics, coding: MaskCoding) -> list[Finding]:
    """Return a `Finding` about grey levels or colours that count as classes, but occur in few pixels of one mask."""
    if coding.kind not in ("grey", "colour") or len(stats.files) < 3:
        return []
    stats = stats.as_colours() if coding.kind == "colour" else stats
    total, stray_texts = sum(stats.pixel_counts.values()), []
    for value in coding.values:
        files = stats.files_with_value(value)
        if len(files) == 1 and stats.pixel_counts[value] * PIXELS_PER_STRAY <= total:
            stray_texts.append(
                f"{coding.format_value(value)} in {counted(stats.pixel_counts[value], 'pixel')} of {files[0].name}"
            )
    if not stray_texts:
        return []
    text = counted(len(stray_texts), "stray value counts as a class", "stray values count as classes")
    examples = join_first_few(stray_texts)
    advice = "correct the masks, or name the classes with --classes"
    return [Finding(STRAY_VALUES, "misleads", f"{text}: {examples}", advice)]


def find_interpolated_masks(stats: MaskStatistics, coding: MaskCoding) -> list[Finding]:
    """Return a `Finding` about masks with intermediate class numbers at edges, as after interpolation."""
    interpolated = [
        file
        for file in stats.files
        if file.interpolated_pixels >= MIN_STEPS and 2 * file.interpolated_pixels > file.jumps
    ]
    if coding.kind != "index" or not interpolated:
        return []
    text = (
        f"in {counted(len(interpolated), 'mask')} ({interpolated[0].name}{', ...' if interpolated[1:] else ''}) "
        "class numbers change step by step at edges, as after resizing with interpolation: the intermediate numbers "
        "are then not real classes"
    )
    return [Finding(RESIZED, "warning", text, "check these masks; resize masks with nearest-neighbour interpolation")]


def find_inverted_masks(pixels: NDArray[np.int64]) -> list[Finding]:
    """Return a `Finding` if some masks of two classes seem to be inverted, given the (N, K) pixels of each class.

    Masks seem inverted if the second class covers a small fraction of some images and a large fraction of all other
    images, and the mean fractions of these two groups sum to about 1.
    """
    labelled = pixels.sum(1)
    with_both_classes = np.flatnonzero((pixels > 0).all(1)) if pixels.shape[1] == 2 else np.zeros(0, dtype=np.int64)
    if len(with_both_classes) < 4:
        return []
    cover = pixels[with_both_classes, 1] / labelled[with_both_classes]
    is_small, is_large = cover <= SMALL_COVER, cover >= LARGE_COVER
    if not (is_small | is_large).all() or min(is_small.mean(), is_large.mean()) < MIN_GROUP_FRACTION:
        return []
    if abs(cover[is_small].mean() + cover[is_large].mean() - 1) >= 0.1:
        return []
    minority = with_both_classes[is_large if is_large.sum() <= is_small.sum() else is_small]
    text = (
        f"the second class covers {100 * cover[is_small].mean():.0f} % of {counted(int(is_small.sum()), 'image')} and "
        f"{100 * cover[is_large].mean():.0f} % of {counted(int(is_large.sum()), 'image')}, with no image in between: "
        "some masks may be inverted"
    )
    return [Finding(INVERTED, "warning", text, "look at some masks of both groups", as_groups(minority))]


def find_rotated_images(ambiguous: Sequence[int], images: ImageSet) -> list[Finding]:
    """Return a `Finding` about images whose masks may have been drawn before or after the EXIF rotation."""
    if not ambiguous:
        return []
    text, _, advice = ambiguity_note([images.keys[index] for index in ambiguous], "masks").rpartition("; ")
    return [Finding(TURNED_IMAGES, "warning", text, advice, as_groups(ambiguous))]
