"""What DrLoc gives on few real images: small transformers on a part of CIFAR-10, with and without the loss.

Every arm has the same recipe, chosen for the baseline; differences are paired by seed, as arms share subset and split.
Scores are those of the epoch that is best on the validation images. Runs that are finished are not repeated.

    python benchmarks/drloc_gain.py ../shared/data/cifar10 --work runs/drloc_gain --model vit
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

import paucal
from measuring import store, surroundings

MODELS: dict[str, dict[str, Any]] = {
    "vit": {
        "model": "vit_tiny_patch16_224",
        "model_args": ["patch_size=4", "embed_dim=64", "depth=6", "num_heads=2"],
    },
    "swin": {
        "model": "swin_tiny_patch4_window7_224",
        "model_args": ["patch_size=2", "window_size=4", "embed_dim=32", "depths=[1,3]", "num_heads=[1,2]"],
    },
}
ARMS: dict[str, dict[str, Any]] = {
    "supervised": {"method": "supervised"},
    "drloc-paper": {"method": "drloc", "drloc_preset": "paper"},
    "drloc-reference": {"method": "drloc", "drloc_preset": "reference"},
    "drloc-paper-0.1": {"method": "drloc", "drloc_preset": "paper", "drloc_weight": 0.1},
}
RECIPE: dict[str, Any] = {
    "batch_size": 64,
    "drop_path": 0.0,
    "rand_augment": "none",
    "mixup": 0.0,
    "cutmix": 0.0,
    "erase": 0.0,
    "val_fraction": 500 / 5500,
    "device": "cpu",
    "workers": 0,
}
TRAIN, TEST = 5500, 2000


def make_subset(source: Path, folder: Path, train: int = TRAIN, test: int = TEST) -> Path:
    """Write stratified parts of the train and test files, the same at every call."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("test", test)):
        target = folder / f"{part}.parquet"
        if target.exists():
            continue
        table = pq.read_table(source / f"{part}.parquet")
        labels = np.asarray(table["label"])
        order = np.random.default_rng(0).permutation(len(labels))
        each = count // len(np.unique(labels))
        rows = np.concatenate([order[labels[order] == label][:each] for label in np.unique(labels)])
        pq.write_table(table.take(np.sort(rows)), target)
    return folder


def run_one(data: Path, work: Path, model: str, arm: str, seed: int, epochs: int, lr: float) -> dict[str, Any]:
    """Train one run, or read what it left."""
    output = work / f"{model}-{arm}-{lr:g}-{epochs}-{seed}"
    if not (output / "summary.json").exists():
        settings = {**RECIPE, **MODELS[model], **ARMS[arm], "epochs": epochs, "lr": lr, "seed": seed}
        paucal.train(data, output=str(output), overwrite=True, **{"init": "none", **settings})
    return {"model": model, "arm": arm, "seed": seed, "lr": lr, "epochs": epochs} | outcome(output)


def outcome(output: Path) -> dict[str, Any]:
    """Return what a finished run has reached."""
    summary = json.loads((output / "summary.json").read_text())
    with (output / "metrics.csv").open() as file:
        curve = [float(row["val_top1"]) for row in csv.DictReader(file)]
    kept = ("best_val_top1", "test_top1", "best_epoch", "seconds", "parameters")
    return {name: summary[name] for name in kept} | {"val_top1": curve}


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and standard deviation per arm, and the differences to the baseline paired by seed, in points."""
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        scores = {row["seed"]: 100 * row["test_top1"] for row in rows if row["arm"] == arm}
        base = {row["seed"]: 100 * row["test_top1"] for row in rows if row["arm"] == "supervised"}
        gains = [scores[seed] - base[seed] for seed in scores if seed in base]
        values = list(scores.values())
        lines.append(
            {"arm": arm, "seeds": len(values), "test_top1": _mean(values), "deviation": _deviation(values)}
            | ({"gain": _mean(gains), "gain_deviation": _deviation(gains)} if arm != "supervised" else {})
        )
    return lines


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 2)


def _deviation(values: list[float]) -> float:
    return round(float(np.std(values, ddof=1)), 2)


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Draw the validation accuracy over epochs: one line per run, one colour per arm."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="epoch", ylabel="validation accuracy (500 images)")
    for number, arm in enumerate(dict.fromkeys(row["arm"] for row in rows)):
        curves = [row["val_top1"] for row in rows if row["arm"] == arm]
        epochs = range(1, len(curves[0]) + 1)
        for curve in curves:
            axes.plot(epochs, curve, color=f"C{number}", alpha=0.3, linewidth=1)
        axes.plot(epochs, np.mean(curves, axis=0), color=f"C{number}", linewidth=2, label=f"{arm}, mean")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def main() -> None:
    """Run all arms and seeds of one model and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with CIFAR-10's train.parquet and test.parquet")
    parser.add_argument("--work", type=Path, default=Path("runs/drloc_gain"), help="where runs and results go")
    parser.add_argument("--model", choices=MODELS, default="vit")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()
    data = make_subset(options.data, options.work / "subset")
    rows = []
    for seed in options.seeds:
        for arm in options.arms:
            rows.append(run_one(data, options.work, options.model, arm, seed, options.epochs, options.lr))
            print(json.dumps(rows[-1]), flush=True)
    if len(options.seeds) > 1:
        name = f"drloc_gain_{options.model}"
        store(name, {"comparison": compare(rows), "runs": rows, "surroundings": surroundings("cpu")})
        draw(rows).savefig(Path(__file__).parent / "results" / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
