"""From trained weights to the best model in the time there is: a probe, a trial of ways to tune, a length.

Every step is written down with the run, so that one that is stopped goes on where it was. What is decided here is
stored among the settings; after that a run is like any other and repeats exactly.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.run.forecast import duration, finish
from paucal.verbs.run.voice import Voice
from paucal.verbs.training.assembly import TUNED_HEAD, AssembledTraining
from paucal.verbs.training.ladder.ascent import Ascent, is_free, is_timed
from paucal.verbs.training.ladder.first_rung import fitted_head, measure, probe, race, save_head
from paucal.verbs.training.ladder.frozen import linear_classifier
from paucal.verbs.training.ladder.timing import seconds_per_image, sides
from paucal.verbs.training.ladder.trials import LEAST_STEPS, attempt, best_of, clear, ways
from paucal.wording import percent

FEW = 100  # training images under which a probe is all that validation can tell from luck
WANTED_PASSES, LEAST_PASSES, MOST_PASSES = 6, 2, 20
SCRATCH_PASSES = 300
TRIAL_SHARE = 0.1  # of the time left, for each way


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
    measure(ascent)
    if len(ascent.rungs.candidates) > 1 and not ascent.rungs.race and ascent.rungs.probe is None:
        race(ascent)
    probe(ascent)
    counts = ascent.made.prepared.counts()
    if ascent.made.settings.epochs == 0:
        return _stay(ascent, "the probe is the model: no passes, as given")
    if is_free(ascent.made, "epochs") and (not counts["val"] or counts["train"] < FEW):
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
    steps = per_epoch
    if is_timed(ascent.made):
        steps = min(steps, int(TRIAL_SHARE * ascent.left() * per_epoch / max(epoch, 1e-9)))
    ascent.keep(tuning={"side": side, "epoch": epoch, "steps": steps})
    return True


def _choose_side(ascent: Ascent) -> tuple[list[int], float] | None:
    """Return the largest image size at which enough passes fit in the time, with the seconds of a pass."""
    made, counts = ascent.made, ascent.made.prepared.counts()
    native = list(made.settings.img_size or [])
    timed = is_timed(made)
    fixed = not timed or not is_free(made, "img_size") or not _takes_any_size(made)
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
        head, score, _ = fitted_head(ascent, smaller, f"head for images of {side[0]} pixels")
        save_head(ascent.run, head, TUNED_HEAD)
        ascent.voice.say(
            f"tuning at {side[0]} pixels, where a pass is quicker: the probe has {percent(score)} there "
            f"of the validation images"
        )


def _try_ways(ascent: Ascent, side: list[int], steps: int) -> Mapping[str, Any] | None:
    """Return the settings of the way to tune that did best in a short trial; None where one was stopped."""
    made = ascent.made
    options = [
        replace(way, settings={name: value for name, value in way.settings.items() if is_free(made, name)})
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


def _set_length(ascent: Ascent, epochs: int, epoch: float, changes: Mapping[str, Any]) -> None:
    """Store how long the run is, with the settings that follow, and say when it ends."""
    made = ascent.settle(**{**changes, "epochs": epochs})
    seconds = epochs * epoch + ascent.image_seconds * len(made.prepared.part("test"))
    tried = [name for name in changes if is_free(ascent.made, name)]
    reasons = dict.fromkeys(tried, "tried on these images, or what the time allows")
    if not is_free(ascent.made, "epochs"):
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
