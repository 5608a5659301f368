"""Reading of the published label maps: one tensor file per image, loaded without executing code from the file.

`<folder>/<class folder>/<image name>.pt` is a float16 tensor (2, k, H, W): the k largest raw logits at each position of
the map, then the numbers of their classes. `<image name>` is the file name of the image up to the first dot. The maps
were made from the central square of each image (Jiang et al. 2021, published code and maps; the released maps have
18x18 positions and k = 5).
"""

import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.images import ImageSet
from paucal.labeling.teacher import MAX_LOGIT
from paucal.types import UserError

MAX_BYTES = 16 << 20  # size of the largest accepted file; the published files are 7 KiB large
MAX_CLASSES = 2048  # maximum number of classes, since float16 cannot represent all integers above 2048
FILES_PER_GROUP = 256  # number of files in memory at once


def find_maps(images: ImageSet, folder: Path) -> tuple[NDArray[np.int64], list[Path]]:
    """Return the positions of the images that have a map, and the paths of these maps."""
    root = folder.resolve()
    if not root.is_dir():
        raise UserError(f"--from-published: {str(folder)!r} is not a folder: give the folder with the class folders.")
    paths = [_map_path(key, root) for key in images.keys]
    has_map = np.array([path.is_file() for path in paths], dtype=bool)
    if not has_map.any():
        raise UserError(
            f"--from-published: {str(folder)!r} contains no maps of {images.name} ({paths[0].relative_to(root)} is "
            "missing, for instance): give the folder that contains the class folders of these images."
        )
    needs_map = ~has_map & np.array([split not in ("val", "test") for split in images.declared_splits])
    if needs_map.any():
        first = images.keys[int(needs_map.argmax())]
        raise UserError(
            f"--from-published: there is no map for {needs_map.sum()} of the training images, such as {first!r}: "
            "add the missing maps, or use only the classes whose images have maps with --classes."
        )
    positions = np.flatnonzero(has_map)
    files = [paths[position] for position in positions]
    path, count = Counter(files).most_common(1)[0]
    if count > 1:
        raise UserError(
            f"--from-published: {count} images would have the same map {str(path)!r}, as their file names are equal up "
            "to the first dot: rename these images and their maps."
        )
    return positions, files


def read_map(path: Path, classes: int) -> tuple[Tensor, Tensor]:
    """Read one published map: the k largest logits at each position, (k, H, W) float16, and their classes, int64."""
    tensor = _load_map(path)
    if tensor.ndim != 4 or tensor.shape[0] != 2 or not tensor.is_floating_point() or tensor.numel() == 0:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise UserError(
            f"{str(path)!r} contains a tensor of type {dtype} and shape {tuple(tensor.shape)}, expected a float16 map "
            "of shape (2, k, rows, columns)."
        )
    values, indices = tensor[0].float(), tensor[1].float()
    if not values.isfinite().all() or not torch.equal(indices, indices.round()):
        raise UserError(
            f"{str(path)!r} contains NaN or infinite logits, or fractional class numbers: download or create the file "
            "again."
        )
    if indices.min() < 0 or indices.max() >= classes:
        raise UserError(
            f"{str(path)!r} names class {int(indices.max() if indices.min() >= 0 else indices.min())} of {classes}: "
            "give the names of the maps' classes, in the order of their numbers, with --published-classes."
        )
    return values.clamp(-MAX_LOGIT, MAX_LOGIT).half(), indices.long()


def read_maps(files: Sequence[Path], classes: int, shape: Sequence[int]) -> Iterator[tuple[int, NDArray, NDArray]]:
    """Read map files in groups; yield the position of the first file, and (n, k, H, W) logits and class numbers."""
    for first in range(0, len(files), FILES_PER_GROUP):
        maps = []
        for path in files[first : first + FILES_PER_GROUP]:
            values, indices = read_map(path, classes)
            if tuple(values.shape) != tuple(shape):
                raise UserError(
                    f"{str(path)!r} contains a map of shape {tuple(values.shape)}, but other maps have the shape "
                    f"{tuple(shape)}: use only maps of one shape."
                )
            maps.append((values, indices))
        values, indices = (torch.stack(tensors).numpy() for tensors in zip(*maps, strict=True))
        yield first, values, indices


def mean_over_positions(values: Tensor, indices: Tensor, classes: int) -> Tensor:
    """Return the (K,) mean logits over the positions of a map; classes that are not stored at a position count as 0."""
    logits = torch.zeros(classes).index_add(0, indices.flatten(), values.float().flatten())
    return logits / values[0].numel()


def _map_path(key: str, root: Path) -> Path:
    parent, _, name = key.rpartition("/")
    folder = parent.rpartition("/")[2]
    path = root / folder / f"{name.partition('.')[0]}.pt"
    if not folder or "#" in name:
        raise UserError(
            f"--from-published: maps are found by class folder and file name, but {key!r} is not a file in a class "
            "folder: give a folder of class folders as DATA."
        )
    # Keys from a list file may contain "..", and symbolic links may point to any folder.
    if not path.resolve().is_relative_to(root):
        raise UserError(f"--from-published: the map of {key!r} would be outside of {str(root)!r}: rename the image.")
    return path


def _load_map(path: Path) -> Tensor:
    try:
        with zipfile.ZipFile(path) as archive:
            size = max(path.stat().st_size, sum(entry.file_size for entry in archive.infolist()))
        if size > MAX_BYTES:
            raise UserError(f"{str(path)!r} is {size >> 20} MiB large, expected a map of a few KiB.")
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as problem:  # torch raises many exception types for a damaged or hostile file
        reason = str(problem).split("\n")[0].split(". ")[0][:120] or type(problem).__name__
        raise UserError(
            f"{str(path)!r} cannot be loaded ({reason}): expected a single tensor, saved by torch 1.6 or newer."
        ) from None
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        raise UserError(f"{str(path)!r} does not contain a dense tensor: expected the shape (2, k, rows, columns).")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise UserError(f"{str(path)!r} is damaged, as its tensor is larger than its storage: download it again.")
    return tensor
