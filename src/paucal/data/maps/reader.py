"""Reads label maps for training, and converts the teacher's class numbers to the class numbers of the image set."""

from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from paucal.data.images import ImageSet
from paucal.data.maps.store import (
    CLASSES,
    DONE,
    INDEX,
    VALUES,
    CoveredRegion,
    LabelMapMetadata,
    open_array,
    pixel_hashes,
    read_index,
    require_shapes,
)
from paucal.data.unreadable import ReportProgress
from paucal.types import UserError


class LabelMaps:
    """A folder of finished label maps; raises a UserError if the folder is invalid."""

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        self.folder = folder
        try:
            classes, grid, trained_on = (tuple(index[name]) for name in ("classes", "grid", "trained_on"))
            covered = index.get("covered", "image")
            self.metadata = LabelMapMetadata(index["teacher"], classes, grid, index["top"], trained_on, covered)
            if self.metadata.covered not in get_args(CoveredRegion):
                raise KeyError(f"covered {self.metadata.covered!r}")
            for name in ("classes", "keys", "hashes", "trained_on"):
                if not isinstance(index[name], list) or not all(type(entry) is str for entry in index[name]):
                    raise TypeError(f"{name} are not a list of names")
            if len(index["keys"]) != len(index["hashes"]):
                raise TypeError(f"{len(index['keys'])} keys but {len(index['hashes'])} hashes")
            self._row = {key: row for row, key in enumerate(index["keys"])}
            self._hashes = list(index["hashes"])
        except (KeyError, TypeError) as problem:
            raise UserError(
                f"{str(folder / INDEX)!r} is not a valid index of label maps ({problem}): make the maps again."
            ) from None
        self._values, self._indices, is_written = (open_array(folder / name, "r") for name in (VALUES, CLASSES, DONE))
        require_shapes(folder, len(self._hashes), self.metadata, (self._values, self._indices, is_written))
        if not is_written.all():
            raise UserError(
                f"the label maps in {str(folder)!r} are unfinished ({int(is_written.sum())} of {len(is_written)}): run "
                "the same 'paucal label' again to continue."
            )

    def __contains__(self, key: str) -> bool:
        """Return whether the image with this key has a map."""
        return key in self._row

    def open_reader(
        self, images: ImageSet, positions: NDArray[np.int64], progress: ReportProgress | None = None
    ) -> "MapReader":
        """Return a reader of the maps of the images at `positions`, after checking that these images are unchanged."""
        class_numbers = _match_classes(self.metadata, images)
        has_other_classes = len(class_numbers) > len(images.classes)
        keys = [images.keys[int(position)] for position in positions]
        if (missing := next((key for key in keys if key not in self._row), None)) is not None:
            raise UserError(
                f"--labels: {str(self.folder)!r} has no map of {missing!r}: the maps were made from other images."
            )
        rows = np.full(len(images), -1)
        rows[positions] = [self._row[key] for key in keys]
        hashes = pixel_hashes(images, positions, progress)
        for position, current_hash in zip(positions.tolist(), hashes, strict=True):
            if current_hash != self._hashes[rows[position]]:
                raise UserError(
                    f"--labels: {images.keys[position]!r} has changed since its label map was made: run 'paucal label' "
                    "again."
                )
        for begin in range(0, len(positions), 1024):
            indices = self._indices[rows[positions[begin : begin + 1024]]]
            lowest, highest = int(indices.min()), int(indices.max())
            if lowest < 0 or highest >= len(self.metadata.classes):
                raise UserError(
                    f"the label maps in {str(self.folder)!r} refer to class {lowest if lowest < 0 else highest}, but "
                    f"there are {len(self.metadata.classes)} classes: the maps are damaged; make the maps again."
                )
        covered = None
        if self.metadata.covered == "square":
            # The central square covers these fractions of the width and the height of an image.
            covered = np.ones((len(images), 2), dtype=np.float32)
            for position in positions.tolist():
                height, width = images.store.size(position)
                covered[position] = min(height, width) / np.array([width, height])
        return MapReader(self.folder, rows, class_numbers, covered, has_other_classes)


@dataclass(eq=False)
class MapReader:
    """Reads maps by the position of the image in its set; picklable, so that loader workers can be spawned."""

    folder: Path
    rows: NDArray[np.int64]  # (N,) row of the map of each image of the set; -1 for images that are not read
    # (K,) class number in the set for each class of the teacher; classes that the set lacks get higher numbers.
    class_numbers: NDArray[np.int64]
    # (N, 2) fractions of width and height that maps cover; None if maps cover whole images.
    covered: NDArray[np.float32] | None = None
    has_other_classes: bool = False  # whether the teacher has classes that the set lacks
    _arrays: tuple[NDArray, NDArray] | None = None

    def __call__(self, position: int) -> dict[str, Tensor]:
        """Return the map of an image: `values` (k, H, W) float16 logits and `indices` (k, H, W) int64 class numbers.

        If maps do not cover their whole images, the result also has `covered`, the (2,) covered fractions of the width
        and the height. If the teacher has classes that the set lacks, it has `teacher_classes`, a scalar: the number of
        all classes of the teacher.
        """
        if self._arrays is None:
            self._arrays = open_array(self.folder / VALUES, "r"), open_array(self.folder / CLASSES, "r")
        values, indices = self._arrays
        row = self.rows[position]
        tensors = {"values": torch.from_numpy(np.array(values[row]))}
        tensors["indices"] = torch.from_numpy(self.class_numbers[indices[row]])
        if self.covered is not None:
            tensors["covered"] = torch.from_numpy(self.covered[position])
        if self.has_other_classes:
            tensors["teacher_classes"] = torch.tensor(len(self.class_numbers))
        return tensors

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_arrays": None}


def list_map_classes(indices: Tensor) -> tuple[Tensor, Tensor]:
    """List the different classes in each of B maps, and replace each class number by its position in that list.

    Return the (B, U) int64 classes of each map, ascending and padded with -1, and the (B, k, H, W) int64 maps of
    positions in these classes. This function runs on the CPU when a batch is collated. On a GPU, the CPU would have to
    wait for U, the largest number of classes in a map.

    Example:
        >>> list_map_classes(torch.tensor([7, 3, 7]).reshape(1, 3, 1, 1))[0]
        tensor([[3, 7]])
    """
    pairs = [torch.unique(image_indices, return_inverse=True) for image_indices in indices]
    max_classes = max(len(classes) for classes, _ in pairs)
    padded = [functional.pad(classes, (0, max_classes - len(classes)), value=-1) for classes, _ in pairs]
    return torch.stack(padded), torch.stack([slots for _, slots in pairs])


def _match_classes(metadata: LabelMapMetadata, images: ImageSet) -> NDArray[np.int64]:
    """Return the (K,) class number in the set for each class of the teacher, matched by name; see `MapReader`."""
    number_by_name, counts = {name: number for number, name in enumerate(images.classes)}, Counter(metadata.classes)
    if unknown := [name for name in number_by_name if name not in counts]:
        raise UserError(
            f"--labels: the maps lack {len(unknown)} of the {len(number_by_name)} classes of {images.name} (such as "
            f"{unknown[0]!r}): use a teacher that has all these classes, or leave classes out with --classes."
        )
    if repeated := next((name for name in number_by_name if counts[name] > 1), None):
        raise UserError(
            f"--labels: the maps have {counts[repeated]} classes called {repeated!r}: give the teacher's classes "
            "distinct names."
        )
    new_numbers = count(len(number_by_name))
    numbers = [number_by_name[name] if name in number_by_name else next(new_numbers) for name in metadata.classes]
    return np.array(numbers, dtype=np.int64)
