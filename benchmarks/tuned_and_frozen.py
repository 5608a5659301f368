"""Accuracy of a tuned network combined with the frozen first model of the same run.

    python benchmarks/ways_to_tune.py CLOTHING --name W --work W --side 128 --epochs 3 --ways "last stages" --seeds 100
    python benchmarks/tuned_and_frozen.py W/last-stages-128-6-100 FROZEN UNSEEN --name tuned_and_frozen

RUN is a run that has tuned, read from its newest checkpoint; FROZEN a run of the same seed and image size whose model
is its first one; UNSEEN a folder with labelled images of neither. Compared are the tuned head, the heads of the race
fitted again to the tuned features, and means of logits with the frozen model, each at its best temperature on the
validation images. The mean with the frozen model takes two networks.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from measuring import percent_right, store, surroundings
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import Split
from paucal.evaluation.calibration import fit_temperature
from paucal.evaluation.predictions import predict_all
from paucal.methods.training_settings import TrainSettings
from paucal.models.trained import load_trained
from paucal.runner.console import SilentConsole
from paucal.runner.images import SplitImages, compute_frozen_features, eval_loader
from paucal.runner.resuming import stored_settings
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import TrainingSetup, assemble
from paucal.tasks.classification.auto_tune.first_model import classifier_in_features
from paucal.tasks.classification.auto_tune.heads import HEADS, compare_heads, fit_mixture
from paucal.tasks.classification.auto_tune.probe import Head, fit_head

Pair = tuple[Tensor, Tensor]  # logits of the validation images and of unseen ones


def average_of(run: RunFolder, setup: TrainingSetup) -> nn.Module:
    """Return the network with the moving average of the newest checkpoint."""
    stored = torch.load(run.last, map_location="cpu", weights_only=True)["callbacks"]
    module = setup.objective.deployable()
    module.load_state_dict(next(state["average"] for name, state in stored.items() if "MovingAverage" in name))
    return module.eval()


def heads_of(setup: TrainingSetup, module: nn.Module, unseen: SplitImages) -> dict[str, Pair]:
    """Return the logits of heads fitted to the features of a network's training images."""
    train, val = setup.data.split_indices("train"), setup.data.split_indices("val")
    fed, settings = setup.card.preprocessing, setup.settings
    own = compute_frozen_features(module, setup.data, np.concatenate([train, val]), fed, settings, staged=True)
    others = compute_frozen_features(module, unseen, unseen.split_indices("test"), fed, settings, staged=True)
    features, judged = own[: len(train)], own[len(train) :]
    labels, count = torch.from_numpy(setup.data.images.labels)[train], len(setup.card.classes)
    width = classifier_in_features(module)
    last = fit_head(features[:, :width], labels, count, settings.seed)
    race = compare_heads(features[:, :width], features, labels, count, last.strength, settings.seed)
    found = {"fitted anew: last": (last.scores(judged[:, :width]), last.scores(others[:, :width]))}
    for name in HEADS:
        head = Head(*fit_mixture(features, labels, count, {name: 1.0}), last.strength, None)
        found[f"fitted anew: {name}"] = head.scores(judged), head.scores(others)
    head = race.head
    won = found["fitted anew: last"] if head is None else (head.scores(judged), head.scores(others))
    return found | {"fitted anew: the race": won}


def main() -> None:
    """Evaluate all combinations, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("frozen", type=Path)
    parser.add_argument("unseen")
    parser.add_argument("--name", required=True, help="of the stored result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = RunFolder(options.run)
    setup = assemble(*stored_settings(run, TrainSettings, "train"), SilentConsole().progress, run)
    images = open_images(options.unseen)
    unseen = SplitImages(images, Split(np.full(len(images), "test", dtype="<U6"), ""))
    parts = (setup.data, setup.data.split_indices("val")), (unseen, unseen.split_indices("test"))
    truth = [torch.from_numpy(data.images.labels)[rows] for data, rows in parts]

    def logits_of(module: nn.Module) -> Pair:
        loaders = [eval_loader(data, rows, setup.card.preprocessing, setup.settings) for data, rows in parts]
        return tuple(predict_all(module, loader, "cpu").logits for loader in loaders)  # type: ignore[return-value]

    def calibrated(pair: Pair) -> Pair:
        temperature = fit_temperature(pair[0], truth[0])
        return pair[0] / temperature, pair[1] / temperature

    def mean(*pairs: Pair) -> Pair:
        known = [calibrated(pair) for pair in pairs]
        return sum(one for one, _ in known) / len(known), sum(other for _, other in known) / len(known)  # type: ignore[return-value]

    frozen = logits_of(load_trained(options.frozen).module)
    module = average_of(run, setup)
    tuned = logits_of(module)
    found = {"frozen first model": frozen, "tuned": tuned} | heads_of(setup, module, unseen)
    anew = found["fitted anew: the race"]
    found |= {"mean of tuned and frozen": mean(tuned, frozen), "mean of fitted anew and frozen": mean(anew, frozen)}
    found |= {"mean of all three": mean(tuned, anew, frozen)}
    rows = []
    for name, pair in found.items():
        row: dict[str, float | str] = {"model": name}
        for part, logits, labels in zip(("val", "unseen"), calibrated(pair), truth, strict=True):
            row[f"{part}_accuracy"] = round(percent_right(logits, labels), 2)
            row[f"{part}_loss"] = round(float(F.cross_entropy(logits, labels)), 4)
        rows.append(row)
        print(row, flush=True)
    facts = {"run": options.run.name, "frozen": options.frozen.name, "images": [len(labels) for labels in truth]}
    store(options.name, facts | {"surroundings": surroundings("cpu"), "models": rows})


if __name__ == "__main__":
    main()
