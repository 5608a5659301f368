"""From trained weights to the best model in the time there is: a probe, a trial of ways to tune, a length.

Every step is written down with the run, so that one that is stopped goes on where it was. What is decided here is
stored among the settings; after that a run is like any other and repeats exactly.
"""

from collections.abc import Mapping
from typing import Any

import torch

from paucal.cores import cores_are_shared, slowdown
from paucal.models.features import linear_classifier
from paucal.runs import RunFolder
from paucal.training import TimePlan
from paucal.types import UserError
from paucal.verbs.run.forecast import duration, finish
from paucal.verbs.run.start_time import start_time
from paucal.verbs.run.time_plan import store_time_plan
from paucal.verbs.run.voice import Voice
from paucal.verbs.training.assembly import AssembledTraining
from paucal.verbs.training.ladder.ascent import Ascent, is_free, is_timed
from paucal.verbs.training.ladder.first_rung import measure, probe, race
from paucal.verbs.training.ladder.timing import seconds_per_image
from paucal.verbs.training.ladder.tuning import choose_way

FEW = 100  # training images under which a probe is all that validation can tell from luck
MOST_PASSES = 20
WRITING = 6.0  # seconds of pictures and the page at the end, on a core of their own
SCRATCH_PASSES = 300


def climb(run: RunFolder, made: AssembledTraining, voice: Voice) -> bool:
    """Find out what the length of a run depends on, and store it with the run.

    Returns:
        Whether it came to its end; False where a signal has stopped a trial.

    Raises:
        UserError: the time does not suffice for anything.
    """
    if made.rungs is None:
        raise ValueError("this run climbs no ladder")
    ascent = Ascent(run, made, made.rungs, voice, start_time() - made.rungs.spent)
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
    each = seconds_per_image(made, threads=True) / made.settings.processes
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
    _set_length(ascent, epochs, epoch, {}, most=most)


def _from_trained(ascent: Ascent) -> bool:
    if cores_are_shared():
        seconds_per_image(ascent.made, threads=True)
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
    chosen = choose_way(ascent)
    if chosen is None:
        return _stay(ascent, f"{_lacking(ascent)}: the probe is the model")
    way, cost = chosen
    passes = ascent.made.settings.epochs
    if passes is None:
        passes = max(1, min(MOST_PASSES, int(ascent.left(cost.shrink) / cost.epoch)))
    _set_length(ascent, passes, cost.epoch, {"img_size": cost.side, **way.settings}, cost.shrink)
    return True


def _lacking(ascent: Ascent) -> str:
    """Return what there was too little of for any way to tune."""
    if None not in ascent.rungs.sizes.values():
        return "the time that is left does not suffice for two passes"
    half = ascent.made.settings.images_per_pass // 2
    advice = f"--batch-size {half} takes half of it" if half else "smaller images, --img-size, take less"
    return f"the memory does not suffice to tune ({advice})"


def _set_length(
    ascent: Ascent,
    epochs: int,
    epoch: float,
    changes: Mapping[str, Any],
    shrink: float = 1.0,
    most: int = MOST_PASSES,
) -> None:
    """Store how long the run is, with the settings that follow, and say when it ends."""
    timed = is_timed(ascent.made)
    made = ascent.settle(**{**changes, "epochs": epochs})
    seconds = epochs * epoch + ascent.looking(shrink)
    tried = [name for name in changes if is_free(ascent.made, name)]
    reasons = dict.fromkeys(tried, "tried on these images, or what the time allows")
    if not is_free(ascent.made, "epochs"):
        plan = f"{epochs} passes, as given"
    else:
        plan = f"{epochs} passes of {duration(epoch)} each fit in the time"
        reasons["epochs"] = plan
    ascent.store(made, reasons)
    ascent.voice.say(f"plan: {plan}; about {duration(seconds)} from now, until {finish(seconds)}")
    if timed:
        evaluation, steps = ascent.eval_seconds(shrink), made.plan.steps_per_epoch
        closing = ascent.looking(shrink) + WRITING * slowdown()
        time_plan = TimePlan(
            *(ascent.rungs.budget, ascent.spent, closing, (epoch - evaluation) / steps, evaluation),
            most_steps=most * steps,
            threads=torch.get_num_threads(),
        )
        store_time_plan(ascent.run, time_plan)
    ascent.keep(plan=plan)


def _stay(ascent: Ascent, why: str) -> bool:
    """End with the probe."""
    made = ascent.settle(epochs=0, freeze_epochs=0)
    ascent.store(made, {"epochs": why})
    ascent.voice.say(f"plan: {why}")
    ascent.keep(plan=why, tune=False)
    return True
