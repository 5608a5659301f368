"""Dataset of augmented views of images; the augmentation of a sample depends only on the seed and its `SampleKey`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from paucal.data.images import UNKNOWN, ImageSet, Targets
from paucal.data.maps.reader import list_map_classes
from paucal.data.randomness import derive_seed, preserve_generators, reseed
from paucal.data.stores import ConvertedStore, DecodedCopies, NestedStore
from paucal.data.views.transforms import BatchTransform, Pixels, ViewTransform
from paucal.types import Batch

ReadLabelMaps = Callable[[int], dict[str, Tensor]]


class SampleKey(NamedTuple):
    """One draw of an image, which determines its augmentation: the epoch, the image's position, and the repeat."""

    epoch: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride] (`tuple.index` is not used)
    repeat: int = 0


class Sample(NamedTuple):
    """The views and targets of one image, with the same fields as `types.Batch` but without the batch axis."""

    id: int
    views: list[Tensor]
    label: int | Tensor | None
    geometry: list[Tensor] | None
    label_maps: dict[str, Tensor] | None


class ViewDataset(Dataset[Sample]):
    """Dataset that returns the augmented views and targets of one image for a `SampleKey`.

    Randomness is seeded from (seed, epoch, index, repeat), so neither the number of workers nor other samples change a
    sample. `views` are (transform, count) pairs; a transform returns a view and its geometry (`types.Batch`).
    `label_maps` returns the dense targets of an image by name, given the position of the image in the set.
    """

    def __init__(
        self,
        image_set: ImageSet,
        views: Sequence[tuple[ViewTransform, int]],
        seed: int,
        with_labels: bool = True,
        with_geometry: bool = False,
        label_maps: ReadLabelMaps | None = None,
    ) -> None:
        if with_labels and not image_set.has_single_labels and image_set.multi_hot is None:
            raise ValueError(f"with_labels is True, but some images of {image_set.location} have no label")
        self.image_set, self.seed = image_set, seed
        self._transforms = [transform for transform, count in views for _ in range(count)]
        self._labels: Targets | None = image_set.targets if with_labels else None
        self._with_geometry, self._label_maps = with_geometry, label_maps

    def __len__(self) -> int:
        return len(self.image_set)

    def __getitem__(self, key: SampleKey) -> Sample:
        """Return the sample; raises `UnreadableImage` if the image was damaged after it was verified."""
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[SampleKey]) -> list[Sample]:
        """Return several samples; torch's loader calls this with the keys of a batch."""
        if (samples := self._batched_samples(keys)) is not None:
            return samples
        with preserve_generators():  # once per batch, since this takes ten times as long as seeding the generators
            return [self._make_sample(key) for key in keys]

    def _batched_samples(self, keys: list[SampleKey]) -> list[Sample] | None:
        """Return the samples if all their images are decoded and the transform supports batches, else None."""
        transform = self._transforms[0] if len(self._transforms) == 1 else None
        if not isinstance(transform, BatchTransform):
            return None
        images: list[Pixels] = []
        for key in keys:
            store, index = self.image_set.store, key.index
            while isinstance(store, NestedStore) and not isinstance(store, ConvertedStore):  # conversion changes pixels
                store, index = store.locate(index)
            pixels = store.view(index) if isinstance(store, DecodedCopies) else None
            if pixels is None or not transform.can_transform_batch(pixels):
                return None
            images.append(pixels)
        views, geometry = transform.transform_batch(images, (derive_seed(self.seed, *key) for key in keys))
        pairs = zip(keys, views.unbind(), geometry.unbind(), strict=True)
        return [self._add_targets(key, [(view, theta)]) for key, view, theta in pairs]

    def _make_sample(self, key: SampleKey) -> Sample:
        image = self.image_set.store.read(key.index)
        reseed(self.seed, *key)
        return self._add_targets(key, [transform(image) for transform in self._transforms])

    def _add_targets(self, key: SampleKey, pairs: list[tuple[Tensor, Tensor]]) -> Sample:
        return Sample(
            id=key.index,
            views=[view for view, _ in pairs],
            label=None if self._labels is None else as_label(self._labels[key.index]),
            geometry=[theta for _, theta in pairs] if self._with_geometry else None,
            label_maps=None if self._label_maps is None else self._label_maps(key.index),
        )


def as_label(target: NDArray[np.integer] | np.integer) -> int | Tensor:
    """Return a class number as int, or a multi-hot row as (K,) float32, in which NaN means unknown."""
    if not target.ndim:
        return int(target)
    row = torch.from_numpy(np.asarray(target)).float()
    return torch.where(row == UNKNOWN, torch.nan, row)


def collate(samples: list[Sample]) -> Batch:
    """Stack samples into a batch; loader workers stack the images in shared memory."""
    first, label_maps = samples[0], None
    if first.label_maps is not None:
        label_maps = default_collate([sample.label_maps for sample in samples])
        if "indices" in label_maps:
            # The distinct classes in a teacher's maps are listed on the CPU, since the training step would have to wait
            # for a GPU.
            label_maps["classes"], label_maps["slots"] = list_map_classes(label_maps.pop("indices"))
    return Batch(
        ids=torch.tensor([sample.id for sample in samples]),
        views=default_collate([sample.views for sample in samples]),
        labels=None if first.label is None else default_collate([sample.label for sample in samples]),
        geometry=None if first.geometry is None else default_collate([sample.geometry for sample in samples]),
        label_maps=label_maps,
    )
