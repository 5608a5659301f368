"""The last rung: what each way to tune costs here, a short trial of each, and the one that goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from paucal.training import TimePlan
from paucal.training.memory import is_out_of_memory
from paucal.types import UserError
from paucal.verbs.run.forecast import duration
from paucal.verbs.training.assembly import AssembledTraining, head_file
from paucal.verbs.training.ladder.ascent import Ascent, is_free, is_timed
from paucal.verbs.training.ladder.first_rung import fitted_head, save_head
from paucal.verbs.training.ladder.rungs import Rung
from paucal.verbs.training.ladder.timing import seconds_per_image, sides
from paucal.verbs.training.ladder.trials import LEAST_STEPS, TRAINED, Way, attempt, best_of, clear, ways

LEAST_PASSES, WHOLE_PASS = 2, 50  # a single pass does where it has so many steps
TRIED_PASSES = 4  # where fewer fit, trials would take what the way itself needs
AT_ONCE = ", at once"  # after a way's name, where it is not tried
JUDGED = "validation images"
TRIAL_SHARE = 0.08  # of the time left, for each way
LONGEST_TRIAL, BEGINNING = 1.5, 5.0  # a trial may take so many times its planned seconds, and some to begin


@dataclass(frozen=True)
class Prospect:
    """What a way to tune costs on this machine.

    Attributes:
        side: image size.
        epoch: seconds of a pass.
        steps: of a trial.
        shrink: share of the probe's pixels that an image has.
    """

    side: list[int]
    epoch: float
    steps: int
    shrink: float = 1.0

    def observed(self, seconds: float, judging: float, per_epoch: int) -> "Prospect":
        """Return the costs by the time that a trial took, which had many more steps than were timed before it.

        Args:
            seconds: of the trial's steps and the look at the validation images after them.
            judging: of that look.
            per_epoch: steps of a pass.
        """
        step = (seconds - judging) / self.steps
        return replace(self, epoch=per_epoch * step + judging) if step > 0 else self


def choose_way(ascent: Ascent) -> tuple[Way, Prospect] | None:
    """Return the way to tune that did best in a short trial, and what it costs; None where no way fits in the time.

    What is found is written down step by step: a trial that was stopped goes on with the size and the steps it was
    begun with.

    Raises:
        KeyboardInterrupt: a signal has stopped a trial.
    """
    options, begun = _options(ascent.made), bool(ascent.rungs.tuning)
    at_once = options[0].name + AT_ONCE in ascent.rungs.tuning
    if len(options) > 1 and (at_once or (not begun and _is_short(ascent, options))):
        return _at_once(ascent, options[0])
    found = [(way, cost) for way in options if (cost := _prospect(ascent, way, len(options))) is not None]
    if not found:
        return None
    timid = not len(ascent.made.prepared.part("val")) or min(cost.steps for _, cost in found) < LEAST_STEPS
    if timid or len(found) == 1:
        why = "no time or images to try several ways to tune" if timid and len(options) > 1 else ""
        return _untried(ascent, *found[0], why)
    trials = [_tried(ascent, way, cost) for way, cost in found]
    best = best_of(trials, len(ascent.made.prepared.part("val")))
    clear(ascent.run)
    way, cost = found[best]
    ascent.voice.say(f"tuning goes on with: {way.name}")
    details, evaluation = trials[best].details, ascent.eval_seconds(cost.shrink)
    tried = replace(cost, steps=details["steps"])
    return way, tried.observed(details.get(TRAINED, 0.0), evaluation, ascent.made.plan.steps_per_epoch)


def _is_short(ascent: Ascent, options: Sequence[Way]) -> bool:
    """Return whether the time is too short to try several ways: few passes of the first one would be left then.

    Passes over images of the probe's size. On 3,068 photographs and a slow core three trials, with the heads for the
    smaller images that then had to be taken, have left three passes at 160 pixels: 91.9 % of the validation images,
    where six at 224 had 94.
    """
    if not is_timed(ascent.made):
        return False
    native = list(ascent.made.settings.img_size or [])
    seconds = _image_seconds(ascent, options[0], native)
    left = ascent.left() * (1 - TRIAL_SHARE * len(options))
    return seconds is not None and left < TRIED_PASSES * _epoch(ascent, seconds, native)


def _epoch(ascent: Ascent, seconds: float, side: Sequence[int]) -> float:
    """Return the seconds of a pass over training and validation images, of so many for a training image."""
    counts = ascent.made.prepared.counts()
    return seconds * counts["train"] + ascent.eval_seconds(_shrink(ascent, side))


def _at_once(ascent: Ascent, way: Way) -> tuple[Way, Prospect] | None:
    """Return the careful way, which then has all the time; None where not even that suffices."""
    cost = _prospect(ascent, replace(way, name=way.name + AT_ONCE), 0)
    return None if cost is None else _untried(ascent, way, cost, "no time to try several ways to tune")


def _untried(ascent: Ascent, way: Way, cost: Prospect, why: str) -> tuple[Way, Prospect]:
    """Go on with a way that was not tried."""
    if why:
        ascent.voice.say(f"note: {why}; the careful one: {way.name}")
    _prepare_head(ascent, cost.side)
    return way, cost


def _options(made: AssembledTraining) -> Sequence[Way]:
    """Return the ways to tune that are left when what the user has given stays; one, where nothing is left open."""
    free = [
        replace(way, settings={name: value for name, value in way.settings.items() if is_free(made, name)})
        for way in ways(made.objective.deployable())
    ]
    found = [way for number, way in enumerate(free) if way.settings not in [one.settings for one in free[:number]]]
    return found if len(found) > 1 else [replace(found[0], name="the settings given")]


def _tried(ascent: Ascent, way: Way, cost: Prospect) -> Rung:
    """Return the trial of a way, made where it is not there yet."""
    done = {trial.name: trial for trial in ascent.rungs.trials}
    if way.name in done:
        return done[way.name]
    _prepare_head(ascent, cost.side)  # not before: a head takes as long as a look at all images
    runner = ascent.settle(img_size=cost.side, epochs=1, freeze_epochs=0, **way.settings)
    # Where one had to be shorter than planned, those it is compared with are shorter by as much.
    shares = [one.details["steps"] / ascent.rungs.tuning[one.name]["steps"] for one in ascent.rungs.trials]
    steps = max(1, int(cost.steps * min([1.0, *shares])))
    trial = attempt(ascent.run, runner, way, steps, ascent.voice, time_plan=_time_of_trial(ascent, cost, steps))
    if trial is None:
        raise KeyboardInterrupt
    ascent.keep(trials=(*ascent.rungs.trials, trial))
    told = ascent.made.prepared.yardstick.told(trial.score)
    ascent.voice.say(f"trial: {way.name}: {told} after {trial.details['steps']} steps, {duration(trial.seconds)}")
    return trial


def _time_of_trial(ascent: Ascent, cost: Prospect, steps: int) -> TimePlan | None:
    """Return the time that a trial may take at most, where the time decides how long the run is."""
    if not is_timed(ascent.made):
        return None
    evaluation = ascent.eval_seconds(cost.shrink)
    step = max(0.0, cost.epoch - evaluation) / max(1, ascent.made.plan.steps_per_epoch)
    most = LONGEST_TRIAL * (steps * step + evaluation) + BEGINNING
    return TimePlan(most, 0.0, 0.0, step, evaluation, most_steps=steps, threads=torch.get_num_threads())


def _prospect(ascent: Ascent, way: Way, count: int) -> Prospect | None:
    """Return what a way costs, found out where that is not written down yet; None where it does not fit in the time."""
    known = ascent.rungs.tuning
    if way.name not in known:
        choice = _choose_side(ascent, way, 1 - count * TRIAL_SHARE)
        if choice is None:
            ascent.keep(tuning={**known, way.name: None})
            return None
        side, epoch = choice
        steps = per_epoch = max(1, ascent.made.plan.steps_per_epoch)
        if is_timed(ascent.made):
            steps = min(steps, int(TRIAL_SHARE * ascent.left(_shrink(ascent, side)) * per_epoch / max(epoch, 1e-9)))
        ascent.keep(tuning={**known, way.name: {"side": side, "epoch": epoch, "steps": steps}})
    stored = ascent.rungs.tuning[way.name]
    if stored is None:
        return None
    side = list(stored["side"])
    return Prospect(side, float(stored["epoch"]), int(stored["steps"]), _shrink(ascent, side))


def _shrink(ascent: Ascent, side: Sequence[int]) -> float:
    native = ascent.made.settings.img_size or side
    return (side[0] / native[0]) ** 2


def _choose_side(ascent: Ascent, way: Way, share: float) -> tuple[list[int], float] | None:
    """Return the largest image size at which enough passes fit in a share of the time, with the seconds of a pass."""
    made, counts = ascent.made, ascent.made.prepared.counts()
    native, timed = list(made.settings.img_size or []), is_timed(made)
    fixed = not timed or not is_free(made, "img_size") or not _takes_any_size(made)
    found: tuple[list[int], float] | None = None
    least = 1 if made.plan.steps_per_epoch >= WHOLE_PASS else LEAST_PASSES
    for side in sides(native, fixed):
        shrink = _shrink(ascent, side)
        fitted = side == native or (ascent.run.path / head_file(side)).exists()
        head = 0.0 if fitted else shrink * ascent.image_seconds * (counts["train"] + counts["val"])
        seconds = _image_seconds(ascent, way, side)
        if seconds is None:  # smaller images may fit
            continue
        epoch = _epoch(ascent, seconds, side)
        passes = (share * ascent.left(shrink) - head) / epoch if timed else way.passes
        if passes >= least:
            found = side, epoch
        if passes >= way.passes:
            break
    return found


def _image_seconds(ascent: Ascent, way: Way, side: list[int]) -> float | None:
    """Return the seconds of a training image of that size, measured where no way that costs the same was yet.

    None where a step does not fit in the memory.
    """
    frozen = way.settings.get("freeze")
    name = "x".join(map(str, side)) + ("" if frozen is None else f", {frozen} stages frozen")
    if name not in ascent.rungs.sizes:
        tuned = {} if frozen is None else {"freeze": frozen}
        ascent.keep(sizes={**ascent.rungs.sizes, name: _measured(ascent, ascent.settle(img_size=side, **tuned), name)})
    return ascent.rungs.sizes[name]


def _measured(ascent: Ascent, runner: AssembledTraining, name: str) -> float | None:
    try:
        return seconds_per_image(runner)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
    ascent.voice.say(f"note: the memory does not suffice to tune on images of {name}")
    return None


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
    """Fit the head that tuning begins with at a size other than the probe's, unless that is done."""
    made, name = ascent.made, head_file(side)
    if side == list(made.settings.img_size or []) or (ascent.run.path / name).exists():
        return
    fitted = fitted_head(ascent, ascent.settle(img_size=side), f"head for images of {side[0]} pixels")
    save_head(ascent.run, fitted.head, name)
    ascent.voice.say(
        f"at {side[0]} pixels, where a pass is quicker, the probe has "
        f"{made.prepared.yardstick.told(fitted.score, JUDGED)}"
    )
