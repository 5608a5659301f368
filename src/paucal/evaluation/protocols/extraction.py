"""Features of many images: extracted in one pass, kept on disk, or made anew from augmented views."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from paucal.data.dataset import SampleKey, ViewDataset, collate
from paucal.data.images import ImageSet
from paucal.data.loader import MOST_TOGETHER, make_eval_loader
from paucal.data.randomness import derive_seed
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.transforms import TrainTransform
from paucal.evaluation.protocols.classifier import require_finite
from paucal.evaluation.protocols.feature_cache import FeatureCache, feature_key, images_fingerprint
from paucal.evaluation.protocols.feature_reader import FeatureKind, FeatureReader
from paucal.evaluation.protocols.linear_probe import Batches, ProbeSettings
from paucal.evaluation.protocols.subjects import Subject

Advance = Callable[[int, int], None]
# The published linear probe's: torchvision's crop of 8 to 100 % (bilinear) and mirroring, nothing else.
PROBE_AUGMENTATION = Augmentation(rand_augment=None, erase_prob=0.0, interpolation="bilinear")


@dataclass(frozen=True)
class Extraction:
    """How features are computed and kept.

    Attributes:
        batch_size: images per forward pass.
        workers: processes that load images.
        dtype: that features are kept in, `torch.float32` or `torch.float16`; the forward pass is in float32.
        cache: where they are kept.
    """

    batch_size: int = MOST_TOGETHER
    workers: int = 0
    dtype: torch.dtype = torch.float32
    cache: FeatureCache = field(default_factory=lambda: FeatureCache(None))


def extract(
    subject: Subject,
    images: ImageSet,
    indices: NDArray[np.int64],
    kinds: Sequence[FeatureKind],
    extraction: Extraction,
    progress: Advance | None = None,
) -> dict[FeatureKind, Tensor]:
    """Return the features of images, from the cache where they are there.

    Args:
        subject: whose features.
        images: the set.
        indices: (N,) positions in it.
        kinds: all that are missing are computed in one pass.
        extraction: how.
        progress: called with (images done, N).

    Returns:
        (N, D) on the CPU in the order of `indices`, in the dtype of the cache also when they were computed just now;
        the cache knows them in any order.

    Raises:
        UserError: a feature is no finite number.
    """
    order = np.argsort(indices, kind="stable")
    data = images_fingerprint(images, indices[order]) if extraction.cache.folder is not None else ""
    keys = {kind: feature_key(subject.fingerprint, data, str(kind), extraction.dtype) for kind in kinds} if data else {}
    found = {kind: extraction.cache.read(key, order) for kind, key in keys.items()}
    missing = [kind for kind in dict.fromkeys(kinds) if found.get(kind) is None]
    for kind, features in zip(missing, _compute(subject, images, indices, missing, extraction, progress), strict=True):
        require_finite(features, "images")
        found[kind] = features
        if data:
            extraction.cache.write(keys[kind], features, order)
    return {kind: features for kind, features in found.items() if features is not None}


def augmented_batches(
    subject: Subject,
    images: ImageSet,
    rows: tuple[NDArray[np.int64], Tensor],
    kind: FeatureKind,
    settings: ProbeSettings,
    extraction: Extraction,
) -> Batches:
    """Return batches of the features of augmented views, new ones in every epoch.

    Args:
        subject: whose features.
        images: the set.
        rows: (N,) positions in it and their (N,) labels.
        kind: which features.
        settings: seed and images per step.
        extraction: workers and images per forward pass.
    """
    indices, labels = rows
    preprocessing = subject.preprocessing
    plain = preprocessing.transform()
    transform = TrainTransform(plain.size, PROBE_AUGMENTATION, plain.normalisation, resize=plain.resize)
    dataset = ViewDataset(images, [(transform, 1)], settings.seed, labels=False)
    label_of = dict(zip(indices.tolist(), labels.tolist(), strict=True))

    def epoch_of(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = np.random.default_rng(derive_seed(settings.seed, epoch)).permutation(indices)
        keys = [SampleKey(epoch, int(index)) for index in order]
        batches = [keys[first : first + settings.batch] for first in range(0, len(keys), settings.batch)]
        loader = DataLoader(dataset, batch_sampler=batches, num_workers=extraction.workers, collate_fn=collate)
        reader = FeatureReader(subject.backbone, [kind])
        try:
            for batch in loader:
                parts = batch.views[0].split(extraction.batch_size)
                with torch.inference_mode():
                    features = torch.cat([reader(part.to(subject.device))[0].float() for part in parts])
                targets = torch.tensor([label_of[index] for index in batch.ids.tolist()], device=features.device)
                yield features.clone(), targets
        finally:
            reader.close()

    return epoch_of


def _compute(
    subject: Subject,
    images: ImageSet,
    indices: NDArray[np.int64],
    kinds: Sequence[FeatureKind],
    extraction: Extraction,
    progress: Advance | None,
) -> list[Tensor]:
    if not kinds:
        return []
    transform = subject.preprocessing.transform()
    on_gpu = subject.device.type == "cuda"
    loader = make_eval_loader(images, indices, transform, extraction.batch_size, extraction.workers, pin_memory=on_gpu)
    reader = FeatureReader(subject.backbone, kinds)
    columns: list[Tensor] = []
    done = 0
    try:
        with torch.inference_mode():
            for batch in loader:
                found = reader(batch.to(subject.device, non_blocking=True).views[0])
                columns = columns or [_room(len(indices), features, extraction.dtype) for features in found]
                for column, features in zip(columns, found, strict=True):
                    column[done : done + len(batch)] = features
                done += len(batch)
                if progress is not None:
                    progress(done, len(indices))
    finally:
        reader.close()
    return columns


def _room(rows: int, features: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an empty tensor for so many rows of features, of use where gradients are as well."""
    with torch.inference_mode(mode=False):
        return torch.empty(rows, features.shape[1], dtype=dtype)
