"""The first rung: which trained weights, the linear head on them, and the model that both make."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.evaluation.predictions import predict_in_order
from paucal.models.features import ClassifierInputs, linear_classifier
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import save_trained
from paucal.runs import RunFolder, save_weights
from paucal.settings.groups import JobSettings
from paucal.verbs.run.forecast import duration, finish
from paucal.verbs.run.images import Prepared
from paucal.verbs.run.loaders import eval_loader
from paucal.verbs.training.assembly import HEAD, AssembledTraining
from paucal.verbs.training.ladder.ascent import Ascent
from paucal.verbs.training.ladder.probe import Head, fit_head, judged, stratified
from paucal.verbs.training.ladder.rungs import Rung

PROBE_SHARE = 0.2  # of the time, at most, for features of the training images: tuning sees all of them
PASSES_LEFT, COST_OF_TUNING = 3, 2.0  # passes that should fit; of a training image, in times of a look at it
RACE_SHARE, RACE_SECONDS, RACE_IMAGES = 0.05, 60.0, 300  # people wait for the first model, and tuning wants time
LARGER = 1.5  # times what the first candidate takes, that another one may


def frozen_features(
    model: nn.Module,
    prepared: Prepared,
    indices: NDArray[np.int64],
    preprocess: Preprocessing,
    settings: JobSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Return (N, D) float32 features on the CPU, in the order of `indices`.

    Args:
        model: on the CPU or where it computes; it goes to the run's device.
        prepared: the images.
        indices: (N,) of them.
        preprocess: how they are prepared.
        settings: device and loader processes.
        progress: called with (images done, N).
    """
    device = settings.device or "cpu"
    inputs = ClassifierInputs(model.to(device))
    try:
        return predict_in_order(inputs, eval_loader(prepared, indices, preprocess, settings), indices, device, progress)
    finally:
        inputs.close()


def race(ascent: Ascent) -> None:
    """Compare the candidates on a part of the training images, by cross-validation."""
    made, found = ascent.made, []
    train = torch.from_numpy(made.prepared.part("train"))
    labels = torch.from_numpy(made.prepared.images.targets).long()[train]
    rows = stratified(labels, RACE_IMAGES, made.settings.seed)
    limit = min(RACE_SECONDS, RACE_SHARE * ascent.rungs.budget) if ascent.rungs.budget else RACE_SECONDS
    expected = ascent.image_seconds * len(rows)
    if expected * (1 + LARGER) > limit:
        others = ", ".join(ascent.rungs.candidates[1:])
        ascent.voice.say(f"note: no time to compare {made.settings.model} with {others}; name one with --model")
        return
    for name in ascent.rungs.candidates:
        begin = time.monotonic()
        runner = made if name == made.settings.model else ascent.settle(model=name)
        with ascent.voice.progress(f"trying {name}") as advance:
            features = frozen_features(
                runner.objective.deployable(), made.prepared, train[rows].numpy(), runner.card.preprocessing,
                runner.settings, advance,
            )  # fmt: skip
        head = fit_head(features, labels[rows], len(made.card.classes), made.settings.seed, (100.0,))
        found.append(Rung(name, head.cross_validated or 0.0, time.monotonic() - begin, {"images": len(rows)}))
        if _winner(ascent, found).name == name and runner is not made:
            ascent.made = runner
        # By what the last one took, as the few images that were timed before it tell little on a busy machine.
        if sum(rung.seconds for rung in found) + LARGER * found[-1].seconds > limit:
            break
    words = made.prepared.yardstick.told
    told = ", ".join(f"{rung.name} {words(rung.score)} in {rung.seconds:.0f} s" for rung in found)
    ascent.voice.say(f"candidates on {len(rows)} training images, cross-validated: {told}")
    winner = _winner(ascent, found)
    if ascent.made.settings.model != winner.name:
        ascent.made = ascent.settle(model=winner.name)
    measure(ascent)
    why = f"the best of {len(found)} candidates on {len(rows)} training images, of nearly equal ones the quickest"
    if winner != winner_of(found):
        why = f"the best of {len(found)} candidates that leaves time to tune it"
        ascent.voice.say(f"note: {winner_of(found).name} would leave no time to tune it: {winner.name} goes on")
    ascent.store(ascent.made, {"model": why})
    ascent.keep(race=tuple(found))


def _winner(ascent: Ascent, race: Sequence[Rung]) -> Rung:
    """Return the winner among the candidates that leave time for some passes."""
    counts, budget = ascent.made.prepared.counts(), ascent.rungs.budget
    seen = sum(counts.values()) + PASSES_LEFT * COST_OF_TUNING * counts["train"]
    return winner_of(affordable(race, budget - ascent.spent, seen) if budget else race)


def affordable(race: Sequence[Rung], left: float, seen: float) -> Sequence[Rung]:
    """Return the candidates that can look at so many images in the seconds left; the quickest, where none can.

    On 5,000 small images a network that cost half as much again, and led by five points, has left no time to tune it:
    74.9 % of the test, where tuning the quicker one had 84.2.
    """
    found = [rung for rung in race if rung.seconds / rung.details["images"] * seen <= left]
    return found or [min(race, key=lambda rung: rung.seconds)]


def winner_of(race: Sequence[Rung]) -> Rung:
    """Return the quickest candidate within a standard error of the best: what it saves goes into tuning."""
    best = max(race, key=lambda rung: rung.score)
    error = math.sqrt(best.score * (1 - best.score) / best.details["images"])
    return min((rung for rung in race if rung.score >= best.score - error), key=lambda rung: rung.seconds)


def measure(ascent: Ascent) -> None:
    """Time the frozen network on a few images, and say when to expect the first model."""
    made = ascent.made
    some = made.prepared.part("train")[:16]
    for _ in range(2):  # the first time warms up
        begin = time.perf_counter()
        frozen_features(made.objective.deployable(), made.prepared, some, made.card.preprocessing, made.settings)
        ascent.image_seconds = (time.perf_counter() - begin) / len(some)
    if ascent.rungs.probe is not None or ascent.told:
        return
    ascent.told = True
    counts = made.prepared.counts()
    first = ascent.image_seconds * (counts["train"] + counts["val"])
    whole = ascent.rungs.budget
    ascent.voice.say(
        f"time: the first model takes about {duration(min(first, PROBE_SHARE * whole or first) + 5)}"
        + (f", and up to {duration(RACE_SECONDS)} more to compare weights" if len(ascent.rungs.candidates) > 1 else "")
        + (f"; the whole run at most {duration(whole)}, until {finish(whole - ascent.spent)}" if whole else "")
    )


@dataclass(frozen=True)
class Fitted:
    """A head on frozen features.

    Attributes:
        head: the head.
        score: share of the validation images that it gives the right class; of cross-validation where there are none.
        images: it was fitted to.
        seconds: of one image through the frozen network.
    """

    head: Head
    score: float
    images: int
    seconds: float


def probe(ascent: Ascent) -> None:
    """Fit the head, judge it, and save the network with it as the run's first model."""
    if ascent.rungs.probe is not None:
        return
    made, begin = ascent.made, time.monotonic()
    fitted = fitted_head(ascent, made, "first model: features")
    head, score, images = fitted.head, fitted.score, fitted.images
    ascent.image_seconds = fitted.seconds  # of many images, where a few were timed before
    classifier = linear_classifier(made.objective.deployable())
    if classifier is not None:
        head.put_into(classifier)
    save_head(ascent.run, head, HEAD)
    save_trained(ascent.run, made.objective.deployable(), made.card)
    details = {
        "model": made.settings.model,
        "img_size": list(made.settings.img_size or []),
        "strength": head.strength,
        "images": images,
        "cross_validated": head.cross_validated,
    }
    ascent.keep(probe=Rung("probe", score, time.monotonic() - begin, details))
    judged = "validation images" if len(made.prepared.part("val")) else "training images left out in turn"
    ascent.voice.say(
        f"first model after {duration(ascent.spent)}: {made.prepared.yardstick.told(score, judged)} "
        f"(a linear head on frozen features of {images} images); it lies in {ascent.run.path} and can be used"
    )


def fitted_head(ascent: Ascent, made: AssembledTraining, title: str) -> Fitted:
    """Return a head for the network of a run at its image size."""
    prepared, settings = made.prepared, made.settings
    train, val = (torch.from_numpy(prepared.part(name)) for name in ("train", "val"))
    all_labels = torch.from_numpy(prepared.images.targets).long()
    rows = torch.arange(len(train))
    affordable = PROBE_SHARE * ascent.rungs.budget / max(ascent.image_seconds, 1e-9)
    if ascent.rungs.budget and len(train) > affordable:
        rows = stratified(all_labels[train], int(affordable), settings.seed)
        ascent.voice.say(f"note: the time allows features of {len(rows)} of the {len(train)} training images")
    together = torch.cat([train[rows], val])
    begin = time.perf_counter()
    with ascent.voice.progress(title) as advance:
        features = frozen_features(
            made.objective.deployable(), prepared, together.numpy(), made.card.preprocessing, settings, advance
        )
    seconds = (time.perf_counter() - begin) / max(len(together), 1)
    labels, count = all_labels[together], len(rows)
    head = fit_head(features[:count], labels[:count], len(made.card.classes), settings.seed)
    score = judged(head, features[count:], labels[count:]) if len(val) else head.cross_validated
    return Fitted(head, 0.0 if score is None else score, count, seconds)


def save_head(run: RunFolder, head: Head, name: str) -> None:
    """Write a head that the run's network may begin with."""
    save_weights(run.path / name, {"weight": head.weight, "bias": head.bias})
