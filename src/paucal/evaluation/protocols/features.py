"""Frozen features: choice of the layers, extraction of the features in one pass, and a cache on disk."""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import LayoutHints, last_tensor, read_layout, to_grid
from paucal.backbones.probe import HookedTensors, hook_output, model_name
from paucal.data.images import ImageSet
from paucal.data.loader import MAX_INFERENCE_BATCH, make_eval_loader
from paucal.data.stores import EncodedStore
from paucal.evaluation.protocols.classifier import count_non_finite, require_finite, rows_per_chunk
from paucal.models.named import FrozenBackbone
from paucal.types import FeatureRequest, UserError
from paucal.wording import counted

LAST_BLOCKS = 4  # number of last blocks that the published linear probe uses
VERSION = "2"  # version of the cache files; increment it whenever the features of the same images change
Advance = Callable[[int, int], None]  # progress function: (steps done, total steps)


@dataclass(frozen=True)
class FeatureKind:
    """The layers that features are read from: the last `count` blocks or stages, whose features are concatenated.

    "pooled" is the class token if the model family has one, otherwise the mean over the last feature map, in both cases
    after the final norm. "class+mean" is the class token and the mean of the patch tokens of each block, after the
    final norm. EsViT's linear probe of ViT-B uses "class+mean"; DINO calls it `avgpool_patchtokens`.
    """

    levels: Literal["pooled", "blocks", "stages", "class+mean"] = "pooled"
    count: int = 1

    def __str__(self) -> str:
        if self.levels == "class+mean":
            last = "block" if self.count == 1 else f"{self.count} blocks"
            return f"class token and mean of patches of the last {last}"
        return "pooled" if self.levels == "pooled" else f"last {counted(self.count, self.levels[:-1])}"


POOLED = FeatureKind()
_KIND = re.compile(r"(?P<alone>pooled|class\+mean)|(?P<levels>blocks|stages|class\+mean):(?P<count>[1-9]\d?)")


def parse_kind(text: str) -> FeatureKind:
    """Parse the value of --features: "pooled", "blocks:4", "stages:2", "class+mean" (last block) or "class+mean:4"."""
    match = _KIND.fullmatch(text)
    if match is None:
        raise UserError(
            f"--features is {text!r}; expected auto or pooled, or a number of last blocks or stages such as blocks:4, "
            "stages:2 or class+mean:1."
        )
    return FeatureKind(match["alone"] or match["levels"], int(match["count"] or 1))  # type: ignore[arg-type]


def probe_kind(backbone: FeatureBackbone) -> FeatureKind:
    """Return the features of the published linear probe: the last four blocks, each after the final norm.

    For a model without a final norm (a ResNet), which the published code does not support, the pooled features are
    returned.
    """
    plan = backbone.plan
    if plan.norm is None or not plan.blocks:
        return POOLED
    return FeatureKind("blocks", min(LAST_BLOCKS, len(plan.blocks)))


class FeatureReader(nn.Module):
    """Reads several kinds of features from one forward pass.

    The feature of a block or stage is the class token if the model's output has a class token (ViT, DeiT). If the stage
    adds a global token (ViL), the feature is this token. Otherwise, the feature is the mean over the patches. The final
    norm is applied to the blocks of the last stage. The final norm cannot be applied to the blocks of earlier stages,
    which have a different number of channels. Blocks of a hierarchical model are read before the patch merging that
    follows them (EsViT, section 4.2). Hooks stay registered on the backbone until `close` is called.
    """

    def __init__(self, backbone: FeatureBackbone, kinds: Sequence[FeatureKind]) -> None:
        super().__init__()
        self.backbone, self.kinds, self._hooked = backbone, tuple(kinds), HookedTensors()
        self._blocks: dict[FeatureKind, tuple[str, ...]] = {}
        for kind in kinds:
            if kind.levels == "class+mean" and not backbone.plan.class_token:
                raise UserError(
                    "--features class+mean needs a model that classifies by its class token, but "
                    f"{model_name(backbone.model)} does not: use pooled (the mean over its patches), blocks:4 or "
                    "stages:2."
                )
            if kind.levels == "blocks" or (kind.levels == "class+mean" and kind.count > 1):
                self._require_enough(len(backbone.plan.blocks), kind.count, "block")
                self._blocks[kind] = backbone.plan.blocks[-kind.count :]
        names = {name for names in self._blocks.values() for name in names}
        self._handles = [hook_output(backbone.model, name, self._hooked) for name in sorted(names)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return one (B, D) tensor per kind for normalised (B, C, H, W) images."""
        requests = [FeatureRequest()]
        requests += [FeatureRequest("stages")] if any(kind.levels == "stages" for kind in self.kinds) else []
        self._hooked.tensors = {}
        try:
            last, *stages = self.backbone.extract(images, requests)
            tensors = self._hooked.tensors
        finally:
            self._hooked.tensors = None
        features = []
        for kind in self.kinds:
            if kind.levels == "pooled":
                features.append(last.pooled)
            elif kind.levels == "class+mean" and kind.count == 1:
                # `last` has a class token even if the model adds it after the blocks.
                features.append(torch.cat([last.pooled, last.grids[-1].mean((2, 3))], 1))
            elif kind.levels == "stages":
                grids = stages[0].grids
                self._require_enough(len(grids), kind.count, "stage")
                means = [grid.mean((2, 3)) for grid in grids[len(grids) - kind.count : -1]]
                features.append(torch.cat([*means, last.pooled], 1))
            else:
                with_mean = kind.levels == "class+mean"
                parts = [
                    self._block_features(tensors[name], images, last.grids[-1], with_mean)
                    for name in self._blocks[kind]
                ]
                features.append(torch.cat(parts, 1))
        return features

    def close(self) -> None:
        """Remove the hooks from the backbone."""
        for handle in self._handles:
            handle.remove()

    def _require_enough(self, available: int, count: int, level: str) -> None:
        if available < count:
            raise UserError(
                f"--features asks for the last {counted(count, level)}, but only {available} of "
                f"{model_name(self.backbone.model)} can be read: give a smaller number, or use pooled."
            )

    def _block_features(self, output: Any, images: Tensor, last: Tensor, with_mean: bool) -> Tensor:
        plan, size = self.backbone.plan, (images.shape[-2], images.shape[-1])
        output = last_tensor(output)
        hints = LayoutHints(plan.channels_last, (last.shape[2], last.shape[3]))
        layout = read_layout(output.shape, size, plan.prefixes, hints)
        grid = to_grid(output, size, plan.prefixes, hints)
        if layout is None or grid is None:
            raise ValueError(f"a block of {model_name(self.backbone.model)} has no feature map for {size} pixels")
        # A prefix token that is missing from the final output summarises its stage (ViL's global token).
        has_summary_token = layout.prefix > 0 and (plan.class_token or plan.prefixes[0] == 0)
        is_normalised = grid.shape[1] == last.shape[1] and plan.norm is not None
        norm = self.backbone.model.get_submodule(plan.norm) if is_normalised and plan.norm else nn.Identity()
        if with_mean and not layout.prefix:
            raise UserError(
                "--features class+mean of several blocks needs a class token in each block, but "
                f"{model_name(self.backbone.model)} adds its class token later: use class+mean:1."
            )
        # Group norm and timm's norms with "2d" in their names expect (B, C, H, W) inputs.
        is_2d = "2d" in type(norm).__name__.lower() or isinstance(norm, nn.GroupNorm)
        features = []
        if has_summary_token or with_mean:
            token = output[:, 0]
            features.append(norm(token[:, :, None, None])[:, :, 0, 0] if is_2d else norm(token))
        if with_mean or not has_summary_token:
            normed_grid = norm(grid) if is_2d else norm(grid.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            features.append(normed_grid.mean((2, 3)))
        return torch.cat(features, 1)


def read_features(path: Path, order: NDArray[np.int64]) -> Tensor | None:
    """Return stored (N, D) features; None if the file is missing or damaged, or if a value is not finite.

    The key of the features is the name of the file, and is also stored in the file. `order` is the argsort of the (N,)
    positions of the images in the set: row `order[i]` belongs to the image with the i-th lowest position.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            stored_key = (file.metadata() or {}).get("key")
            ranks, features = file.get_tensor("ranks"), file.get_slice("features")
            shape, count = tuple(features.get_shape()), len(order)
            has_all_ranks = ranks.dtype == torch.int64 and torch.equal(ranks.sort().values, torch.arange(count))
            if stored_key != path.stem or len(shape) != 2 or shape[0] != count or not has_all_ranks:
                raise UserError(
                    f"{str(path)!r} contains features of a different model or of different images than its name "
                    "says: delete the file."
                )
            return _place_rows(features, torch.from_numpy(order)[ranks], shape[1])
    except (SafetensorError, OSError):
        return None


def write_features(path: Path, features: Tensor, order: NDArray[np.int64]) -> None:
    """Store (N, D) features; see `read_features` for the meaning of `order`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ranks = torch.from_numpy(np.argsort(order, kind="stable"))
    content = {"features": features.contiguous(), "ranks": ranks}
    # The content is saved to a path, since saving to an open file would copy all features first. A crash of the machine
    # may leave an incomplete file, which `read_features` treats as missing.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        safetensors.torch.save_file(content, temporary, metadata={"key": path.stem})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _place_rows(stored: Any, rows: Tensor, dim: int) -> Tensor | None:
    """Return stored features with row i moved to `rows[i]`; None if a value is not finite."""
    features, step = None, rows_per_chunk(dim)
    for start in range(0, len(rows), step):
        chunk = stored[start : start + step]
        if count_non_finite(chunk):
            return None
        features = chunk.new_empty(len(rows), dim) if features is None else features
        features[rows[start : start + step]] = chunk
    return features


def images_fingerprint(images: ImageSet, indices: NDArray[np.int64]) -> str:
    """Return a digest of the images at these positions, in this order.

    For images in memory, the digest covers the pixels or the encoded bytes. For image files, the digest covers only the
    path, size and modification time, so that the files need not be read.
    """
    digest, store = hashlib.blake2b(digest_size=16), images.store
    for index in indices.tolist():
        if not isinstance(store, EncodedStore):
            pixels = np.asarray(store.read(index))
            digest.update(str(pixels.shape).encode())
            digest.update(pixels.tobytes())
            continue
        source = store.source(index)
        if isinstance(source, bytes):
            digest.update(hashlib.blake2b(source, digest_size=16).digest())
        else:
            stat = source.stat()
            digest.update(f"{source.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


@dataclass(frozen=True)
class Extraction:
    """Settings of feature extraction."""

    batch_size: int = MAX_INFERENCE_BATCH
    workers: int = 0  # number of image-loading processes
    dtype: torch.dtype = torch.float32  # dtype of the features
    cache: Path | None = None  # folder with a file of features for each model and set; None to read and store nothing


def extract(
    frozen_backbone: FrozenBackbone,
    images: ImageSet,
    indices: NDArray[np.int64],
    kinds: Sequence[FeatureKind],
    extraction: Extraction,
    progress: Advance | None = None,
) -> dict[FeatureKind, Tensor]:
    """Return the features of images, from the cache or computed in one pass.

    `indices` are (N,) positions in the set, and the result has (N, D) features of each kind on the CPU, in the order of
    `indices` and in `extraction.dtype`. The cache also recognises the same images in a different order. `progress` is
    called with the number of images processed so far and with N.
    """
    order = np.argsort(indices, kind="stable")
    paths: dict[FeatureKind, Path] = {}
    if extraction.cache is not None:
        data = images_fingerprint(images, indices[order])
        for kind in kinds:
            text = " ".join((VERSION, frozen_backbone.fingerprint, data, str(kind), str(extraction.dtype)))
            key = hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
            paths[kind] = extraction.cache / f"{key}.safetensors"
    cached = {kind: read_features(path, order) for kind, path in paths.items()}
    missing = [kind for kind in dict.fromkeys(kinds) if cached.get(kind) is None]
    computed = _compute_features(frozen_backbone, images, indices, missing, extraction, progress) if missing else []
    for kind, features in zip(missing, computed, strict=True):
        require_finite(features, "images")
        cached[kind] = features
        if paths:
            write_features(paths[kind], features, order)
    return {kind: features for kind, features in cached.items() if features is not None}


def _compute_features(
    subject: FrozenBackbone,
    images: ImageSet,
    indices: NDArray[np.int64],
    kinds: Sequence[FeatureKind],
    extraction: Extraction,
    progress: Advance | None,
) -> list[Tensor]:
    transform = subject.preprocessing.transform()
    on_gpu = subject.device.type == "cuda"
    loader = make_eval_loader(images, indices, transform, extraction.batch_size, extraction.workers, pin_memory=on_gpu)
    reader = FeatureReader(subject.backbone, kinds)
    columns: list[Tensor] = []
    n_done = 0
    try:
        with torch.inference_mode():
            for batch in loader:
                batch_features = reader(batch.to(subject.device, non_blocking=True).views[0])
                if not columns:
                    with torch.inference_mode(mode=False):  # so that autograd can use the features
                        columns = [
                            torch.empty(len(indices), rows.shape[1], dtype=extraction.dtype) for rows in batch_features
                        ]
                for column, features in zip(columns, batch_features, strict=True):
                    column[n_done : n_done + len(batch)] = features
                n_done += len(batch)
                if progress is not None:
                    progress(n_done, len(indices))
    finally:
        reader.close()
    return columns
