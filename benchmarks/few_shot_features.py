"""Pooled features of a frozen network for a part of a data set, computed once and kept.

    python benchmarks/few_shot_features.py CLOTHING --work /tmp/few --model tf_efficientnet_lite0.in1k

Every image and its mirror image go through the network as `paucal train` prepares them: the mean over the cells of
the last map, which the classifier reads, and the mean and the standard deviation over the cells of each stage.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paucal.backbones import BackboneSpec
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.weights.checkpoints import timm_preprocessing
from paucal.backbones.weights.start import start_from
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.models.preprocessing import Preprocessing
from paucal.models.published import read_timm
from paucal.types import FeatureRequest

NETWORKS = ("tf_efficientnet_lite0.in1k", "tf_efficientnet_lite1.in1k")
REQUESTS = (FeatureRequest("last"), FeatureRequest("stages"))
BATCH = 16


def chosen_rows(images: ImageSet, part: str, per_class: int, seed: int = 0) -> np.ndarray:
    """Return ascending positions of at most `per_class` images of each class of a part, drawn by a seed."""
    draw = np.random.default_rng(seed)
    own = np.flatnonzero(np.asarray(images.declared_splits) == part)
    rows = [draw.permutation(own[images.labels[own] == label])[:per_class] for label in range(len(images.classes))]
    return np.sort(np.concatenate(rows))


def drawn_rows(found: dict[str, Tensor], per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return ascending positions of images drawn from each class of the training part, and those of all others."""
    draw, labels, pool = np.random.default_rng(seed), found["labels"].numpy(), ~found["is_test"].numpy()
    by_class = (np.flatnonzero(pool & (labels == label)) for label in range(int(labels.max()) + 1))
    drawn = np.sort(np.concatenate([draw.permutation(own)[:per_class] for own in by_class]))
    return torch.from_numpy(drawn), torch.from_numpy(np.setdiff1d(np.arange(len(labels)), drawn))


def frozen_network(model: str, side: int = 224, classes: int = 0) -> tuple[FeatureBackbone, Preprocessing]:
    """Return a network with its trained weights in evaluation mode, and how its images are prepared."""
    backbone = BackboneSpec(model, classes, image_size=(side, side)).build().eval()
    start_from(backbone.model, read_timm(model, init=False), head="fresh")
    return backbone, Preprocessing.from_image_input((side, side), timm_preprocessing(model))


@torch.inference_mode()
def pooled(backbone: FeatureBackbone, images: Tensor) -> dict[str, Tensor]:
    """Return (B, D) float32 features by name: "last", and "mean" and "std" of each stage's cells side by side."""
    last, stages = backbone.extract(images, REQUESTS)
    return {
        "last": last.pooled,
        "mean": torch.cat([grid.mean((2, 3)) for grid in stages.grids], 1),
        "std": torch.cat([grid.std((2, 3)) for grid in stages.grids], 1),
        "widths": torch.tensor([grid.shape[1] for grid in stages.grids]),
    }


def features(source: str, model: str, work: Path, train: int, test: int) -> dict[str, Tensor]:
    """Return the features of a set's images, made if missing.

    Args:
        source: Images with a train and a test part; a validation part is added to the test part.
        model: timm name of the network.
        work: Folder for the features.
        train: Most training images of each class.
        test: Most test images of each class.

    Returns:
        (N, D) features by name ("last", "mean", "std", and those of mirror images after "mirrored_"), "labels" (N,),
        "is_test" (N,) and "widths", the channels of each stage.
    """
    kept = work / f"{Path(source).name}-{model}-{train}-{test}.safetensors"
    if kept.exists():
        return load_file(kept)
    images = open_images(source)
    parts = {"train": train, "val": test, "test": test}
    declared = {part: chosen_rows(images, part, most) for part, most in parts.items() if part in images.declared_splits}
    rows = np.concatenate(list(declared.values()))
    backbone, preprocessing = frozen_network(model)
    transform = preprocessing.transform()
    found: dict[str, list[Tensor]] = {}
    widths = torch.empty(0)
    for start in range(0, len(rows), BATCH):
        batch = torch.stack([transform(images.store.read(int(row)))[0] for row in rows[start : start + BATCH]])
        for prefix, view in (("", batch), ("mirrored_", batch.flip(-1))):
            values = pooled(backbone, view)
            widths = values.pop("widths")
            for name, value in values.items():
                found.setdefault(prefix + name, []).append(value.float())
        if start % 800 == 0:
            print(Path(source).name, model, start, len(rows), flush=True)
    tested = np.concatenate([np.full(len(own), part != "train") for part, own in declared.items()])
    tensors = {name: torch.cat(values).contiguous() for name, values in found.items()}
    tensors |= {"labels": torch.from_numpy(images.labels[rows]), "is_test": torch.from_numpy(tested), "widths": widths}
    work.mkdir(parents=True, exist_ok=True)
    save_file(tensors, kept)
    return tensors


def main() -> None:
    """Compute the features of one set by one network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="labelled images with a test part of their own")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", default=NETWORKS[0])
    parser.add_argument("--train", type=int, default=240, help="most training images of each class")
    parser.add_argument("--test", type=int, default=300, help="most test images of each class")
    options = parser.parse_args()
    features(options.source, options.model, options.work, options.train, options.test)


if __name__ == "__main__":
    main()
