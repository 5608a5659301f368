"""LeJEPA beside self-distillation on few images, in equal time: features, and whether the loss tells how good they are.

    python benchmarks/lejepa_gain.py ../shared/data/cifar10 --work /tmp/lejepa --minutes 6

The same small Swin with random weights, pre-trained by EsViT's view task, by both its tasks and by LeJEPA, for as many
epochs as fit in --minutes of one core each: the time of an epoch is measured first, as processor time, arms taking
turns. Pre-training sees the training images without labels. Evaluated by nearest neighbours (k = 20) and by the linear
probe: training images as the bank, test images read once at the end. The correlation is Spearman's, over the epochs of
a run, of the loss with the nearest neighbours among the monitor's images, which are training images. Nothing is chosen
by test images. Finished parts are kept in --work, so that a new call resumes where the last one stopped.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr

import paucal
from esvit_gain import ARGUMENTS, MODEL, NEIGHBOURS, export, features
from measuring import store, surroundings
from paucal.evaluation.protocols.knn import knn_scores
from paucal.evaluation.protocols.linear_probe import PUBLISHED, cached_batches, fit_probe, limit_batch_size
from paucal.models.trained import load_trained
from paucal.runs import RunFolder

ARMS: dict[str, dict[str, Any]] = {
    "view": {"tasks": "view"},
    "view+region": {"tasks": "view+region"},
    "lejepa": {"method": "lejepa", "pipeline": "dino"},  # the crops of the other arms, not the authors'
}
RANDOM = "random weights"


def pretrained(arm: str, data: Path, run: Path, **length: Any) -> Path:
    """Return a finished run of an arm, made if missing."""
    if not (run / "summary.json").exists():
        method = ARMS.get(arm, ARMS["view"])
        settings: dict[str, Any] = {**method, **length, "overwrite": run.exists()}
        shape: dict[str, Any] = {"model": MODEL, "model_args": ARGUMENTS, "img_size": [32], "drop_path": 0.0}
        paucal.pretrain(data, output=str(run), **shape, **settings)
    return run


def epoch_seconds(data: Path, work: Path, images: int) -> dict[str, float]:
    """Return the processor seconds of an epoch of each arm over the images of a small folder, scaled to all of them."""
    kept = work / "epoch_seconds.json"
    if kept.exists():
        return json.loads(kept.read_text())
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for turn in range(2):
        for arm in ARMS:
            spent = {}
            for epochs in (1, 3):
                begin = time.process_time()
                pretrained(arm, data, work / f"timing-{arm}-{turn}-{epochs}", epochs=epochs)
                spent[epochs] = time.process_time() - begin
            found[arm].append((spent[3] - spent[1]) / 2)
    times = {arm: round(min(values) * images / 1000, 2) for arm, values in found.items()}
    kept.write_text(json.dumps(times))
    return times


def judged(run: Path, data: Path) -> dict[str, float]:
    """Return the shares of test images that nearest neighbours and the linear probe give the right class."""
    model = load_trained(run, "cpu")
    bank, labels = features(model, data, "train")
    asked, truth = features(model, data, "test")
    classes = int(labels.max()) + 1
    nearest = knn_scores(bank, labels, asked, classes, [NEIGHBOURS])[NEIGHBOURS].argmax(1)
    held = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)) < len(labels) // 10)
    settings = limit_batch_size(PUBLISHED, len(labels))
    probe = fit_probe(
        cached_batches(bank[~held], labels[~held], settings),
        cached_batches(bank, labels, settings),
        (bank[held], labels[held]),
        classes,
        settings,
    ).classifier
    return {
        "knn": float((nearest == truth).float().mean()),
        "linear": float((probe.scores(asked).argmax(1) == truth).float().mean()),
    }


def course(run: Path) -> dict[str, Any]:
    """Return loss and nearest neighbours by epoch, and Spearman's correlation of the two."""
    rows = RunFolder(run).read_rows()
    loss, knn = [row["train_loss"] for row in rows], [row["val_knn"] for row in rows]
    return {"loss": loss, "knn": knn, "spearman": float(np.asarray(spearmanr(loss, knn))[0])}


def draw(courses: dict[str, list[dict[str, Any]]], minutes: float) -> Figure:
    """Draw nearest neighbours over the time of pre-training, and against the loss."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (arm, found) in enumerate(courses.items()):
        for turn, one in enumerate(found):
            times = minutes * np.arange(1, len(one["knn"]) + 1) / len(one["knn"])
            left.plot(times, one["knn"], color=f"C{number}", label=None if turn else arm)
            scaled = np.array(one["loss"]) / one["loss"][0]
            right.plot(scaled, one["knn"], ".", color=f"C{number}", label=None if turn else arm)
    left.set(xlabel="minutes of pre-training on one core", ylabel="nearest neighbours, the monitor's images")
    right.set(xlabel="loss, as a share of the first epoch's")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def tabled(scores: dict[str, list[dict[str, float]]], courses: dict[str, list[dict[str, Any]]], epochs: Any) -> str:
    """Return Markdown: a row per start, mean and half the range over the seeds."""
    lines = ["| start | epochs | nearest neighbours | linear probe | loss and nearest neighbours |", "|---" * 5 + "|"]
    for arm, found in scores.items():
        cells = []
        for kind in ("knn", "linear"):
            values = [100 * one[kind] for one in found]
            cells.append(f"{statistics.mean(values):.1f} ± {(max(values) - min(values)) / 2:.1f}")
        related = ", ".join(f"{one['spearman']:+.2f}" for one in courses.get(arm, []))
        lines.append(f"| {arm} | {epochs.get(arm, '')} | {cells[0]} | {cells[1]} | {related} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    data, few = options.work / "data", options.work / "few"
    export(options.source, data, options.images, options.test_images)
    export(options.source, few, 1000, 100)
    times = epoch_seconds(few, options.work, options.images)
    epochs = {arm: max(2, round(60 * options.minutes / seconds)) for arm, seconds in times.items()}
    print(times, epochs, flush=True)
    scores: dict[str, list[dict[str, float]]] = {RANDOM: []}
    courses: dict[str, list[dict[str, Any]]] = {}
    for seed in options.seeds:
        start = pretrained(RANDOM, few, options.work / f"random-{seed}", epochs=1, lr=1e-12, seed=seed)
        scores[RANDOM].append(judged(start, data))
        for arm in ARMS:
            length = {"epochs": epochs[arm], "seed": seed, "monitor": str(data), "monitor_images": 2000}
            run = pretrained(arm, data, options.work / f"{arm}-{seed}", **length)
            scores.setdefault(arm, []).append(judged(run, data))
            courses.setdefault(arm, []).append(course(run))
    result = {
        "surroundings": surroundings("cpu"),
        "settings": {key: str(value) for key, value in vars(options).items() if key not in ("work", "source")},
        "epoch_seconds": times,
        "epochs": epochs,
        "scores": scores,
        "courses": courses,
    }
    store("lejepa_gain", result)
    draw(courses, options.minutes).savefig(Path(__file__).parent / "results" / "lejepa_gain.png", dpi=110)
    print(tabled(scores, courses, epochs))


if __name__ == "__main__":
    main()
