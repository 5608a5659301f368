"""From trained weights to the best model in the time there is: a probe, a trial of ways to tune, a length.

Every step is written down with the run, so that one that is stopped goes on where it was. What is decided here is
stored among the settings; after that a run is like any other and repeats exactly.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from paucal.evaluation.deployed import save_deployed
from paucal.runs import RunFolder, save_weights
from paucal.types import UserError
from paucal.verbs.run.forecast import duration, finish
from paucal.verbs.run.resuming import store_changes
from paucal.verbs.run.start_weights import RECORD
from paucal.verbs.run.voice import Voice
from paucal.verbs.training.assembly import HEAD, TUNED_HEAD, AssembledTraining, assemble
from paucal.verbs.training.ladder.frozen import frozen_features, linear_classifier
from paucal.verbs.training.ladder.probe import Head, accuracy, fit_head, stratified
from paucal.verbs.training.ladder.rungs import Rung, Rungs
from paucal.verbs.training.ladder.timing import seconds_per_image, sides
from paucal.verbs.training.ladder.trials import LEAST_STEPS, attempt, best_of, clear, ways
from paucal.wording import percent

FEW = 100  # training images under which a probe is all that validation can tell from luck
RESERVE = 0.05  # share of the time kept for pictures, the page and what was not foreseen
PROBE_SHARE = 0.35  # of the time, at most, for features of the training images
RACE_SHARE, RACE_SECONDS, RACE_IMAGES = 0.12, 60.0, 300  # people wait for the first model
LARGER = 1.5  # times what the first candidate takes, that another one may
WANTED_PASSES, LEAST_PASSES, MOST_PASSES = 6, 2, 20
SCRATCH_PASSES = 300
TRIAL_SHARE = 0.1  # of the time left, for each way
FREE = frozenset(("init", "time", "method", "model", "device", "devices", "nodes", "batch_size"))  # never chosen anew


@dataclass
class Ascent:
    """A ladder being climbed.

    Attributes:
        run: where everything is written.
        made: the run as it stands.
        rungs: what is known.
        voice: says what happens.
        begun: `time.monotonic()` at which this call would have begun had it made all steps itself.
        image_seconds: of one image through the frozen network.
        told: whether people know when to expect the first model.
    """

    run: RunFolder
    made: AssembledTraining
    rungs: Rungs
    voice: Voice
    begun: float
    image_seconds: float = 0.0
    told: bool = False

    @property
    def spent(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun

    def left(self) -> float:
        """Seconds that may still go into training, when the test images have their share."""
        tests = self.image_seconds * len(self.made.prepared.part("test"))
        return (1 - RESERVE) * self.rungs.budget - self.spent - tests

    def keep(self, **changes: Any) -> None:
        """Write down what was found out."""
        self.rungs = self.rungs.but(**changes, spent=self.spent).write(self.run)

    def settle(self, **changes: Any) -> AssembledTraining:
        """Return the run put together anew, with settings changed and those that follow from them chosen again."""
        made = self.made
        again = {name for name, origin in made.origin.items() if origin.startswith("auto: ")} - FREE - set(changes)
        if "model" not in changes:
            again -= {"img_size"}
        settings = replace(made.settings, **dict.fromkeys(again), **changes)
        given = {name: origin for name, origin in made.origin.items() if name not in again and origin != "default"}
        again = assemble(settings, given, self.voice.progress, self.run, made.prepared)
        return replace(again, plan=replace(again.plan, deadline=made.plan.deadline))

    def store(self, made: AssembledTraining, reasons: Mapping[str, str]) -> None:
        """Make settings those of the run."""
        origin = {**made.origin, **{name: f"auto: {reason}" for name, reason in reasons.items()}}
        self.made = replace(made, origin=origin)
        store_changes(self.run, made.settings, origin)
        if made.start is not None:
            self.run.write_json(RECORD, made.start.to_dict())


def climb(run: RunFolder, made: AssembledTraining, voice: Voice) -> bool:
    """Find out what the length of a run depends on, and store it with the run.

    Returns:
        Whether it came to its end; False where a signal has stopped a trial.

    Raises:
        UserError: the time does not suffice for anything.
    """
    if made.rungs is None:
        raise ValueError("this run climbs no ladder")
    ascent = Ascent(run, made, made.rungs, voice, time.monotonic() - made.rungs.spent - made.opening)
    try:
        if made.rungs.candidates and linear_classifier(made.objective.deployable()) is not None:
            return _from_trained(ascent)
        _at_once(ascent)
        return True
    finally:
        ascent.keep()  # the time, where a signal came between


def _at_once(ascent: Ascent) -> None:
    """Find the length of a run that begins with training: from scratch, or where no probe is possible."""
    made, budget = ascent.made, ascent.rungs.budget
    if made.settings.epochs == 0:
        raise UserError(
            f"--epochs 0 keeps a linear probe, and {made.settings.model} has no linear classifier for one: give more."
        )
    if ascent.rungs.candidates:
        ascent.voice.say(f"note: {made.settings.model} has no linear classifier: it is tuned at once, without a probe")
    counts = made.prepared.counts()
    each = seconds_per_image(made) / made.settings.processes
    epoch = each * (counts["train"] + counts["val"] / 3)
    ascent.image_seconds = each / 3
    if made.settings.epochs is not None:
        _set_length(ascent, made.settings.epochs, epoch, {})
        return
    left = ascent.left()
    if epoch > max(left, 0.0) and epoch > 1.1 * budget:
        raise UserError(
            f"--time is {made.settings.time}, and one pass over the {counts['train']} training images takes "
            f"{duration(epoch)} here: give --time {int((3 * epoch + 60) // 60)}m or more, a smaller --img-size, or "
            "--fraction."
        )
    most = SCRATCH_PASSES if made.settings.init is None else MOST_PASSES
    epochs = max(1, min(most, int(left / epoch)))
    _set_length(ascent, epochs, epoch, {})


def _from_trained(ascent: Ascent) -> bool:
    _measure(ascent)
    if len(ascent.rungs.candidates) > 1 and not ascent.rungs.race and ascent.rungs.probe is None:
        _race(ascent)
    _probe(ascent)
    counts = ascent.made.prepared.counts()
    if ascent.made.settings.epochs == 0:
        return _stay(ascent, "the probe is the model: no passes, as given")
    if _free(ascent.made, "epochs") and (not counts["val"] or counts["train"] < FEW):
        why = f"{counts['train']} training images" if counts["val"] else "no images to validate with"
        return _stay(ascent, f"{why}: the probe is the model, since nothing could tell whether tuning is better")
    if not ascent.rungs.tuning and not _choose_tuning(ascent):
        return _stay(ascent, "the time that is left does not suffice for two passes: the probe is the model")
    side, epoch = list(ascent.rungs.tuning["side"]), float(ascent.rungs.tuning["epoch"])
    way = _try_ways(ascent, side, int(ascent.rungs.tuning["steps"]))
    if way is None:
        return False
    clear(ascent.run)
    passes = ascent.made.settings.epochs
    if passes is None:
        passes = max(1, min(MOST_PASSES, int(ascent.left() / epoch)))
    _set_length(ascent, passes, epoch, {"img_size": side, **way})
    return True


def _choose_tuning(ascent: Ascent) -> bool:
    """Choose the image size to tune at and the steps of a trial, fit the head for it, and write that down.

    Once chosen they stay: a trial that was stopped goes on with the steps it was begun with.
    """
    choice = _choose_side(ascent)
    if choice is None:
        return False
    side, epoch = choice
    _prepare_head(ascent, side)
    per_epoch = max(1, ascent.made.plan.steps_per_epoch)
    share = TRIAL_SHARE * ascent.left() if _timed(ascent.made) else epoch
    steps = int(min(share * per_epoch / max(epoch, 1e-9), per_epoch))
    ascent.keep(tuning={"side": side, "epoch": epoch, "steps": steps})
    return True


def _race(ascent: Ascent) -> None:
    """Compare the candidates on a part of the training images, by cross-validation."""
    made, found = ascent.made, []
    train = torch.from_numpy(made.prepared.part("train"))
    labels = torch.from_numpy(made.prepared.images.labels)[train]
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
        best = max(found, key=lambda rung: rung.score)
        if best.name == name and runner is not made:
            ascent.made = runner
        if sum(rung.seconds for rung in found) + LARGER * expected > limit:
            break
    told = ", ".join(f"{rung.name} {percent(rung.score)} in {rung.seconds:.0f} s" for rung in found)
    ascent.voice.say(f"candidates on {len(rows)} training images, cross-validated: {told}")
    winner = max(found, key=lambda rung: rung.score)
    if ascent.made.settings.model != winner.name:
        ascent.made = ascent.settle(model=winner.name)
    _measure(ascent)
    ascent.store(ascent.made, {"model": f"the best of {len(found)} candidates on {len(rows)} training images"})
    ascent.keep(race=tuple(found))


def _measure(ascent: Ascent) -> None:
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
        + (f"; the whole run at most {duration(whole)}, until {finish(whole - ascent.spent)}" if whole else "")
    )


def _probe(ascent: Ascent) -> None:
    """Fit the head, judge it, and save the network with it as the run's first model."""
    if ascent.rungs.probe is not None:
        return
    made, begin = ascent.made, time.monotonic()
    head, score, images = _fit(ascent, made, "first model: features")
    classifier = linear_classifier(made.objective.deployable())
    if classifier is not None:
        head.put_into(classifier)
    save_head(ascent.run, head, HEAD)
    save_deployed(ascent.run, made.objective.deployable(), made.card)
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
        f"first model after {duration(ascent.spent)}: {percent(score)} of the {judged} "
        f"(a linear head on frozen features of {images} images); it lies in {ascent.run.path} and can be used"
    )


def _fit(ascent: Ascent, made: AssembledTraining, title: str) -> tuple[Head, float, int]:
    """Return a head for the network of a run at its image size, its score, and the images it was fitted to."""
    prepared, settings = made.prepared, made.settings
    train, val = (torch.from_numpy(prepared.part(name)) for name in ("train", "val"))
    all_labels = torch.from_numpy(prepared.images.labels)
    rows = torch.arange(len(train))
    affordable = PROBE_SHARE * ascent.rungs.budget / max(ascent.image_seconds, 1e-9)
    if ascent.rungs.budget and len(train) > affordable:
        rows = stratified(all_labels[train], int(affordable), settings.seed)
        ascent.voice.say(f"note: the time allows features of {len(rows)} of the {len(train)} training images")
    together = torch.cat([train[rows], val])
    with ascent.voice.progress(title) as advance:
        features = frozen_features(
            made.objective.deployable(), prepared, together.numpy(), made.card.preprocessing, settings, advance
        )
    labels, count = all_labels[together], len(rows)
    head = fit_head(features[:count], labels[:count], len(made.card.classes), settings.seed)
    score = accuracy(head, features[count:], labels[count:]) if len(val) else head.cross_validated
    return head, 0.0 if score is None else score, count


def _choose_side(ascent: Ascent) -> tuple[list[int], float] | None:
    """Return the largest image size at which enough passes fit in the time, with the seconds of a pass."""
    made, counts = ascent.made, ascent.made.prepared.counts()
    native = list(made.settings.img_size or [])
    timed = _timed(made)
    fixed = not timed or not _free(made, "img_size") or not _takes_any_size(made)
    found: tuple[list[int], float] | None = None
    measured = dict(ascent.rungs.sizes)
    for side in sides(native, fixed):
        shrink = (side[0] / native[0]) ** 2
        again = 0.0 if side == native else shrink * ascent.image_seconds * (counts["train"] + counts["val"])
        name = "x".join(map(str, side))
        if name not in measured:
            measured[name] = seconds_per_image(made if side == native else ascent.settle(img_size=side))
        epoch = measured[name] * counts["train"] + shrink * ascent.image_seconds * counts["val"]
        passes = (1 - 2 * TRIAL_SHARE) * (ascent.left() - again) / epoch if timed else WANTED_PASSES
        if passes >= LEAST_PASSES:
            found = side, epoch
        if passes >= WANTED_PASSES:
            break
    ascent.keep(sizes=measured)
    return found


def _takes_any_size(made: AssembledTraining) -> bool:
    """Return whether the network's weights fit images of any size: no tensor of it depends on one."""
    spec = made.card.backbone
    side = spec.image_size[0] - 32
    try:
        other = replace(spec, image_size=(side, side)).build().model.state_dict()
    except UserError:
        return False
    own = made.objective.deployable().state_dict()
    return own.keys() == other.keys() and all(value.shape == other[name].shape for name, value in own.items())


def _prepare_head(ascent: Ascent, side: list[int]) -> None:
    """Fit the head that tuning begins with, at the size it is tuned at; at the probe's own it is the probe's."""
    made = ascent.made
    (ascent.run.path / TUNED_HEAD).unlink(missing_ok=True)
    if side != list(made.settings.img_size or []):
        smaller = ascent.settle(img_size=side)
        head, score, _ = _fit(ascent, smaller, f"head for images of {side[0]} pixels")
        save_head(ascent.run, head, TUNED_HEAD)
        ascent.voice.say(
            f"tuning at {side[0]} pixels, where a pass is quicker: the probe has {percent(score)} there "
            f"of the validation images"
        )


def _try_ways(ascent: Ascent, side: list[int], steps: int) -> Mapping[str, Any] | None:
    """Return the settings of the way to tune that did best in a short trial; None where one was stopped."""
    made = ascent.made
    options = [
        replace(way, settings={name: value for name, value in way.settings.items() if _free(made, name)})
        for way in ways(made.objective.deployable())
    ]
    if not any(way.settings for way in options):
        return {}  # everything that could be tried was given
    if steps < LEAST_STEPS or not len(made.prepared.part("val")):
        ascent.voice.say(f"note: no time or images to try several ways to tune; the careful one: {options[-1].name}")
        return options[-1].settings
    trials = list(ascent.rungs.trials)
    for way in options[len(trials) :]:
        tried = ascent.settle(img_size=side, epochs=1, freeze_epochs=0, **way.settings)
        trial = attempt(ascent.run, tried, way, steps, ascent.voice)
        if trial is None:
            return None
        trials.append(trial)
        ascent.keep(trials=tuple(trials))
        ascent.voice.say(f"trial: {way.name}: {percent(trial.score)} after {steps} steps, {duration(trial.seconds)}")
    best = best_of(trials)
    ascent.voice.say(f"tuning goes on with: {options[best].name}")
    return options[best].settings


def _timed(made: AssembledTraining) -> bool:
    """Return whether the time decides how long the run is."""
    return made.rungs is not None and made.rungs.budget > 0 and _free(made, "epochs")


def _free(made: AssembledTraining, name: str) -> bool:
    """Return whether nobody has given a setting."""
    return made.origin.get(name, "default") == "default" or made.origin[name].startswith("auto: ")


def _set_length(ascent: Ascent, epochs: int, epoch: float, changes: Mapping[str, Any]) -> None:
    """Store how long the run is, with the settings that follow, and say when it ends."""
    made = ascent.settle(**{**changes, "epochs": epochs})
    seconds = epochs * epoch + ascent.image_seconds * len(made.prepared.part("test"))
    tried = [name for name in changes if _free(ascent.made, name)]
    reasons = dict.fromkeys(tried, "tried on these images, or what the time allows")
    if not _free(ascent.made, "epochs"):
        plan = f"{epochs} passes, as given"
    else:
        plan = f"{epochs} passes of {duration(epoch)} each fit in the time"
        reasons["epochs"] = plan
    ascent.store(made, reasons)
    ascent.voice.say(f"plan: {plan}; about {duration(seconds)} from now, until {finish(seconds)}")
    ascent.keep(plan=plan)


def _stay(ascent: Ascent, why: str) -> bool:
    """End with the probe."""
    made = ascent.settle(epochs=0, freeze_epochs=0)
    ascent.store(made, {"epochs": why})
    ascent.voice.say(f"plan: {why}")
    ascent.keep(plan=why, tune=False)
    return True


def save_head(run: RunFolder, head: Head, name: str) -> None:
    """Write a head that the run's network may begin with."""
    save_weights(run.path / name, {"weight": head.weight, "bias": head.bias})
