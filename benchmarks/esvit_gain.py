"""What pre-training by self-distillation gives on few images: nearest neighbours, then fine-tuning with few labels.

    python benchmarks/esvit_gain.py ../shared/data/cifar10 --work /tmp/esvit

The same small Swin with random weights, pre-trained with the view task, and with both tasks. Pre-training sees the
training images without labels. Nearest neighbours (k = 20): training images as the bank, test images as the queries.
Fine-tuning: all arms alike on 1, 10 and 100 % of the labels, each from several seeds, scored once on the test images.
Fine-tuning is three calls of `paucal.compare`, one for each share, since epochs depend on it; the script adds the
pre-training before and the one file of results behind them. Other scripts use its parts, too.
Nothing is chosen by test images. Finished parts are kept in --work, so that a new call resumes where the last one
stopped.
"""

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import paucal
from measuring import store, surroundings
from paucal.backbones.features import FeatureBackbone
from paucal.data.sources.opening import open_images
from paucal.evaluation.protocols.knn import knn_scores
from paucal.models.trained import TrainedModel, load_trained
from paucal.runs import RunFolder

MODEL = "swin_tiny_patch4_window7_224"
ARGUMENTS = ["patch_size=4", "embed_dim=64", "depths=[2, 2]", "num_heads=[2, 4]", "window_size=4"]
SHARES = {"0.01": 60, "0.1": 15, "1.0": 5}  # share of the labels: epochs of fine-tuning
NEIGHBOURS = 20


def export(source: str, folder: Path, train: int, test: int) -> None:
    """Write images as class folders, in parts of their own; do nothing if they exist."""
    if (folder / "done").exists():
        return
    images = open_images(source)
    draw = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        rows = np.flatnonzero(np.asarray(images.declared_splits) == part)
        for row in draw.permutation(rows)[:count].tolist():
            target = folder / part / images.classes[images.labels[row]] / f"{row}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            images.store.read(row).save(target)
    (folder / "done").touch()


def pretrained(arm: str, options: argparse.Namespace, data: Path) -> Path:
    """Return the run of an arm, trained if missing; for "none" a run that has learned next to nothing."""
    run = options.work / f"pretrain-{arm}"
    length = {"tasks": "view", "epochs": 1, "lr": 1e-12} if arm == "none" else {"tasks": arm, "epochs": options.epochs}
    if not (run / "summary.json").exists():
        paucal.pretrain(
            data,
            output=str(run),
            overwrite=True,
            model=MODEL,
            model_args=ARGUMENTS,
            img_size=[32],
            monitor=str(data),
            monitor_images=2000,
            drop_path=0.0,
            **length,
        )
    return run


@torch.inference_mode()
def features(model: TrainedModel, data: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N, D) pooled features and (N,) labels of a part."""
    images = open_images(str(data))
    backbone = FeatureBackbone(model.module, model.card.preprocessing.image_size).eval()
    transform = model.card.preprocessing.transform()
    rows = np.flatnonzero(np.asarray(images.declared_splits) == part)
    found = []
    for start in range(0, len(rows), 256):
        batch = torch.stack([transform(images.store.read(int(row)))[0] for row in rows[start : start + 256]])
        found.append(backbone(batch.to(model.device)).pooled.cpu())
    return torch.cat(found), torch.from_numpy(images.labels[rows])


def nearest_neighbours(run: Path, data: Path, device: str = "cpu") -> float:
    """Return the share of test images given the right class."""
    model = load_trained(run, device)
    bank, labels = features(model, data, "train")
    asked, truth = features(model, data, "test")
    scores = knn_scores(bank, labels, asked, int(labels.max()) + 1, [NEIGHBOURS])[NEIGHBOURS]
    return float((scores.argmax(1) == truth).float().mean())


def fine_tuned(
    share: str, starts: Mapping[str, Path], options: argparse.Namespace, data: Path
) -> dict[str, list[float]]:
    """Return the test accuracies after fine-tuning by start, one for each seed."""
    own = {"method": "supervised", "model": f"esvit_{MODEL}", "model_args": ARGUMENTS, "fraction": float(share)}
    found = paucal.compare(
        data,
        arms={arm: {**own, "init": "none" if arm == "none" else str(run)} for arm, run in starts.items()},
        seeds=options.seeds,
        output=str(options.work / f"tuned-{share}"),
        recipe="small-images",
        img_size=[32],
        epochs=SHARES[share],
        warmup_epochs=0.1 * SHARES[share],
        lr=1e-3,
        batch_size=16 if share == "0.01" else 64,
        normalise="computed",
        device="cpu",
    )
    return {one.arm.name: [one.outcomes[seed].scores["top1"] for seed in options.seeds] for one in found.findings.arms}


def tabled(scores: dict[str, dict[str, list[float]]]) -> str:
    """Return Markdown: a row per arm, mean and deviation over seeds per share."""
    lines = [f"| start | {' | '.join(f'{float(share):.0%} of labels' for share in SHARES)} |", "|---" * 4 + "|"]
    for arm, by_share in scores.items():
        cells = [
            f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values) if len(values) > 1 else 0:.1f}"
            for values in by_share.values()
        ]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def curve(run: Path) -> list[float]:
    """Return the share of the monitor's images given the right class, before pre-training and after each epoch."""
    before = json.loads((run / "summary.json").read_text())["knn_start"]
    return [before, *(row["val_knn"] for row in RunFolder(run).read_rows())]


def draw(result: dict[str, Any]) -> Figure:
    """Draw nearest neighbours over the epochs of pre-training, and what fine-tuning gives by share of the labels."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = {arm: f"C{number}" for number, arm in enumerate(result["tuned"])}
    for arm, values in result["curves"].items():
        left.plot(values, color=colours[arm], marker="o", label=arm)
    left.set(xlabel="epoch of pre-training", ylabel="nearest neighbours, the monitor's images")
    for arm, by_share in result["tuned"].items():
        shares = [100 * float(share) for share in by_share]
        right.plot(shares, [statistics.mean(values) for values in by_share.values()], color=colours[arm], label=arm)
        for share, values in zip(shares, by_share.values(), strict=True):
            right.plot([share] * len(values), values, ".", color=colours[arm])
    right.set(xscale="log", xlabel="labels for fine-tuning (%)", ylabel="test accuracy")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def main() -> None:
    """Run what is missing, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--name", default="esvit_gain", help="of the stored result and its picture")
    parser.add_argument("--only", choices=["view", "view+region"], help="only pre-train this arm")
    options = parser.parse_args()
    data = options.work / "data"
    export(options.source, data, options.images, options.test_images)
    if options.only:
        pretrained(options.only, options, data)
        return
    starts = {arm: pretrained(arm, options, data) for arm in ("none", "view", "view+region")}
    neighbours = {arm: nearest_neighbours(run, data) for arm, run in starts.items()}
    tuned: dict[str, dict[str, list[float]]] = {}
    for share in SHARES:
        for arm, scores in fine_tuned(share, starts, options, data).items():
            tuned.setdefault(arm, {})[share] = scores
    result: dict[str, Any] = {
        "surroundings": surroundings("cpu"),
        "settings": {key: str(value) for key, value in vars(options).items() if key not in ("work", "source")},
        "nearest_neighbours": neighbours,
        "curves": {arm: curve(run) for arm, run in starts.items() if arm != "none"},
        "tuned": tuned,
    }
    store(options.name, result)
    draw(result).savefig(Path(__file__).parent / "results" / f"{options.name}.png", dpi=110)
    print(tabled(tuned))


if __name__ == "__main__":
    main()
