"""Counts of blood cells by regression on frozen features: error compared with the mean count, and interval coverage.

    python benchmarks/count_cells.py ../shared/data/bccd --splits 100

The target of each image of bccd is the number of its boxes. Features of the whole images are read once; each split cuts
a fifth of the images for the test, and fits and evaluates as `paucal train --target` does.
"""

import argparse
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from paucal.metrics.regression import conformal_half_width
from paucal.models.features import StageClassifierInputExtractor
from paucal.models.named import open_named
from paucal.models.regression import INTERVAL_LEVEL
from paucal.tasks.regression.fitting import fit_ridge

TEST, AT_ONCE = 0.2, 16


def counts(folder: Path) -> tuple[list[Path], np.ndarray]:
    """Return the paths of the images, and how many boxes each has."""
    files = sorted((folder / "Annotations").glob("*.xml"))
    paths = [folder / "JPEGImages" / f"{file.stem}.jpg" for file in files]
    return paths, np.array([len(ET.parse(file).findall("object")) for file in files], dtype=np.float64)


def read_features(paths: list[Path], name: str, side: int) -> np.ndarray:
    """Return (N, D) features of images, stretched to a square: the last ones, and those of the last stages."""
    model = open_named(name, "cpu", [side])
    whole = replace(model.card.preprocessing, crop_ratio=1.0, resize="squash")  # a crop would leave cells out
    model = replace(model, card=replace(model.card, preprocessing=whole))
    reader, pieces = StageClassifierInputExtractor(model.module, (side, side)).eval(), []
    with torch.inference_mode():
        for place in range(0, len(paths), AT_ONCE):
            pieces.append(reader(model.prepared([Image.open(path) for path in paths[place : place + AT_ONCE]])))
    return torch.cat(pieces).double().numpy()


def judge(features: np.ndarray, targets: np.ndarray, seed: int) -> dict[str, float]:
    """Return the errors of one split, and the share of test images within their interval."""
    order = np.random.default_rng(seed).permutation(len(targets))
    test, train = np.split(order, [round(TEST * len(order))])
    fitted = fit_ridge(features[train], targets[train], seed)
    half = conformal_half_width(fitted.residuals, INTERVAL_LEVEL)
    errors = np.abs(fitted.predict(features[test]) - targets[test])
    usual = np.abs(targets[test] - targets[train].mean())
    covered = float((errors <= half).mean())
    return {"mae": float(errors.mean()), "mean_mae": float(usual.mean()), "coverage": covered, "half_width": half}


def main() -> None:
    """Evaluate all splits and print the means and deviations as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bccd", type=Path)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--model", default="tf_efficientnet_lite0.in1k")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--features", type=Path, help="file of the features, written by the first call")
    values = parser.parse_args()
    paths, targets = counts(values.bccd)
    if values.features is not None and values.features.exists():
        features = np.load(values.features).astype(np.float64)
    else:
        features = read_features(paths, values.model, values.side)
        if values.features is not None:
            np.save(values.features, features)
    rows = [judge(features, targets, seed) for seed in range(values.splits)]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    found = {name: {"mean": column.mean(), "deviation": column.std(ddof=1)} for name, column in columns.items()}
    better = int((columns["mae"] < columns["mean_mae"]).sum())
    print(json.dumps({"images": len(paths), "splits": len(rows), "better_than_mean": better, **found}, indent=2))


if __name__ == "__main__":
    main()
