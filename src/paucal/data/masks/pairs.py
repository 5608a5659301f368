"""Which mask belongs to which image: two folders whose files have the same names but for the suffix."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paucal.data.sources.folder import find_images
from paucal.types import UserError
from paucal.wording import counted, was

# As published sets and labelling programs call the two folders, in any case.
IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "photos")
MASK_FOLDERS = (
    *("masks", "mask", "labels", "label", "annotations", "annotation", "gt", "groundtruth", "segmentation"),
    *("segmentationclass", "targets"),
)
# What programs add to the name of an image to name its mask.
ENDINGS = ("", "_mask", "-mask", "_label", "_labels", "_seg", "_gt", "_segmentation", "_labelIds")
SHOWN = 5


@dataclass(frozen=True)
class Pair:
    """An image and its mask.

    Attributes:
        key: of the image, relative to the root of the images, with forward slashes.
        mask: the file.
    """

    key: str
    mask: Path


@dataclass(frozen=True)
class Pairs:
    """The images of a set that have masks.

    Attributes:
        root: folder that the keys are relative to.
        pairs: sorted by key.
        notes: sentences on files that were left out.
    """

    root: Path
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]


def find_pairs(data: Path, images: Path | None = None, masks: Path | None = None) -> Pairs:
    """Match images to masks.

    Args:
        data: a folder with a folder of images and one of masks in it, at its top (`images/`, `masks/`, parts below
            them), or within parts (`train/images/`, `train/masks/`).
        images: folder of the images, in the place of `data`; goes with `masks`.
        masks: folder of the masks.

    Raises:
        UserError: a folder is missing, nothing matches, or two files claim to be the mask or the image of one name.
    """
    if (images is None) != (masks is None):
        raise UserError("--images and --masks go together: give both, or a folder that has both in it.")
    if images is not None and masks is not None:
        for flag, folder in (("--images", images), ("--masks", masks)):
            _require_folder(folder, flag)
        names = {key: (key, PurePosixPath(key)) for key in find_images(images)}
        return _matched(images, _by_place(names.values()), {key: masks / key for key in find_images(masks)})
    _require_folder(data, "DATA")
    return _within(data)


def _within(data: Path) -> Pairs:
    """Match what lies in a folder of images and a folder of masks below one root."""
    found = find_images(data)
    sides: dict[str, list[tuple[str, PurePosixPath]]] = {"image": [], "mask": []}
    for key in found:
        side, place = _side(key)
        if side:
            sides[side].append((key, place))
    if not sides["image"] or not sides["mask"]:
        lacking = "images" if not sides["image"] else "masks"
        raise UserError(
            f"DATA: {str(data)!r} has no {lacking} in it: expected a folder of images ({', '.join(IMAGE_FOLDERS[:2])}, "
            f"...) and one of masks ({', '.join(MASK_FOLDERS[:4])}, ...) with files of the same names; or name them "
            "with --images and --masks."
        )
    masks = {place.as_posix(): data / key for key, place in sides["mask"]}
    return _matched(data, _by_place(sides["image"]), masks)


def _side(key: str) -> tuple[str, PurePosixPath]:
    """Return "image", "mask" or "", and the path of a file without the folder that says so."""
    parts = PurePosixPath(key).parts
    for place, part in enumerate(parts[:-1]):
        for side, names in (("image", IMAGE_FOLDERS), ("mask", MASK_FOLDERS)):
            if part.lower() in names:
                return side, PurePosixPath(*parts[:place], *parts[place + 1 :])
    return "", PurePosixPath(key)


def _by_place(images: Iterable[tuple[str, PurePosixPath]]) -> dict[str, str]:
    """Return the key of each image by its place without suffix.

    Raises:
        UserError: two images differ in their suffix alone.
    """
    found: dict[str, str] = {}
    for key, place in images:
        stem = place.with_suffix("").as_posix()
        if stem in found:
            raise UserError(
                f"the images {found[stem]!r} and {key!r} have one name, and masks are found by it: rename one of them."
            )
        found[stem] = key
    return found


def _matched(root: Path, images: Mapping[str, str], masks: Mapping[str, Path]) -> Pairs:
    stems: dict[str, Path] = {}
    for place, path in sorted(masks.items()):
        stem = PurePosixPath(place).with_suffix("").as_posix()
        if stem in stems:
            raise UserError(
                f"the masks {stems[stem].name!r} and {path.name!r} have one name, and belong to one image: remove one."
            )
        stems[stem] = path
    pairs, alone, used = [], [], set()
    for stem, key in images.items():
        name = next((stem + ending for ending in ENDINGS if stem + ending in stems), None)
        if name is None:
            alone.append(key)
        else:
            pairs.append(Pair(key, stems[name]))
            used.add(name)
    if not pairs:
        raise UserError(
            f"none of the {counted(len(images), 'image')} has a mask of its name: the first image is "
            f"{next(iter(images.values()), 'missing')!r}, the first mask {next(iter(masks), 'missing')!r}; name both "
            "alike but for the suffix."
        )
    notes = _left_out(alone, "image without a mask", "images without masks")
    notes += _left_out([p.name for stem, p in stems.items() if stem not in used], "mask without an image")
    return Pairs(root, tuple(sorted(pairs, key=lambda pair: pair.key)), tuple(notes))


def _left_out(names: Sequence[str], one: str, many: str = "masks without images") -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return [f"{counted(len(names), one, many)} {was(len(names))} left out: {shown}"]


def _require_folder(path: Path, flag: str) -> None:
    if not path.is_dir():
        there = "is no folder" if path.exists() else "does not exist"
        raise UserError(f"{flag}: {str(path)!r} {there}; give a folder of image files.")
