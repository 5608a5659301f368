"""Sentences about the results of a comparison, claiming no more than the intervals support."""

from collections.abc import Sequence

from paucal.evaluation.comparison import Difference
from paucal.metrics.intervals import Score
from paucal.runner.clock import duration
from paucal.verbs.compare.cells.grid import Grid
from paucal.verbs.compare.outcome.evidence import ArmOutcome, Findings
from paucal.wording import counted

SAME_TIME = 1.05  # ratio up to which two times count as equal
MANY = 3  # differences from which the sentence on multiple comparisons is shown


def points(value: float) -> str:
    """Return a difference of shares in percentage points, with its sign.

    Example:
        >>> points(0.0214), points(-0.003), points(-0.0001)
        ('+2.1', '-0.3', '+0.0')
    """
    return f"{round(100 * value, 1) or 0.0:+.1f}"


def span(score: Score) -> str:
    """Return an interval of a difference as text; a dash without one."""
    return "-" if score.low is None or score.high is None else f"{points(score.low)} to {points(score.high)}"


def verdicts(found: Findings) -> list[str]:
    """Return a sentence about every difference."""
    return [verdict(one, one.gain) for one in found.arms if one.gain is not None]


def verdict(one: ArmOutcome, gain: Difference) -> str:
    """Return a sentence on whether an arm is better than its baseline."""
    seeds, other = len(gain.by_seed.values), one.baseline
    basis = f"{counted(seeds, 'seed')}, {counted(gain.images, 'test image')}"
    if gain.clear:
        word = "better" if gain.value > 0 else "worse"
        return (
            f"{one.name} is {word} than {other} by {abs(100 * gain.value):.1f} points (95 % interval "
            f"{span(gain.both)}; {basis})."
        )
    begin = f"{one.name} against {other}: {points(gain.value)} points (95 % interval {span(gain.both)}; {basis})"
    if seeds == 1:
        return f"{begin}. One seed cannot show the variation of training: use at least three."
    if gain.value == 0 and gain.both.low is None:
        return f"{begin}: the predictions are the same for every image."
    return f"{begin}: no significant difference. {needed(gain)}"


def needed(gain: Difference) -> str:
    """Return a sentence on what it would take to detect a difference of the measured size."""
    if gain.value == 0 or gain.seeds_needed is None:
        return "A difference this small could not be detected with any affordable number of seeds."
    parts = []
    if gain.seeds_needed > len(gain.by_seed.values):
        parts.append(f"about {gain.seeds_needed} seeds")
    if gain.images_needed is not None and gain.images_needed > gain.images:
        parts.append(f"{gain.images_needed:,} test images")
    if not parts:
        parts.append("a few more seeds")
    return f"To detect a difference of this size in four of five comparisons would take {' and '.join(parts)}."


def fairness(found: Findings) -> list[str]:
    """Return sentences on what is equal between each arm and its baseline, and what is not."""
    by_name = {one.name: one for one in found.arms}
    lines = [_length(found.grid, found.arms)]
    for one in found.arms:
        other = by_name.get(one.baseline)
        if other is not None and one.outcomes and other.outcomes:
            lines.append(_beside(one, other))
    if found.grid.rates:
        tried = ", ".join(f"{rate:g}" for rate in found.grid.rates)
        lines.append(
            f"The learning rate of each way was chosen among {tried} by the validation images of seed "
            f"{found.grid.seeds[0]}, the same for all ways."
        )
    else:
        lines.append(
            "No learning rate was searched (--lrs does): each way uses the given one, or its own default, "
            "which gives an advantage to the way whose default suits these images better."
        )
    if len(found.differences) >= MANY:
        lines.append(
            f"{len(found.differences)} differences are tested: one of twenty that do not exist looks clear by luck."
        )
    return lines


def _length(grid: Grid, arms: Sequence[ArmOutcome]) -> str:
    epochs = {one.epochs for arm in arms for one in arm.outcomes.values()}
    if "time" in grid.shared:
        counts = f" ({min(epochs)} to {max(epochs)} epochs)" if epochs else ""
        return f"All runs had the same time, {grid.shared['time']}, for as many epochs as fit{counts}."
    if len(epochs) == 1:
        same = counted(epochs.pop(), "epoch")
        return f"All runs trained for the same {same}; their times differ, --time makes them equal."
    if not epochs:
        return "No run is done yet."
    return f"The runs trained for {min(epochs)} to {max(epochs)} epochs, as the settings of each say."


def _beside(one: ArmOutcome, other: ArmOutcome) -> str:
    parts = [
        _ratio("parameters", one.mean("parameters"), other.mean("parameters")),
        _ratio("multiply-adds for an image", one.mean("macs"), other.mean("macs")),
        _ratio("seconds an epoch", one.mean("epoch_seconds"), other.mean("epoch_seconds"), SAME_TIME),
        _ratio("time in all", one.mean("seconds"), other.mean("seconds"), SAME_TIME),
    ]
    return f"{one.name} beside {other.name}: {'; '.join(part for part in parts if part)}."


def _ratio(what: str, value: float | None, base: float | None, equal: float = 1.0005) -> str:
    if not value or not base:
        return ""
    ratio = value / base
    return f"the same {what}" if 1 / equal <= ratio <= equal else f"{ratio:.2f} times the {what}"


def failures(found: Findings) -> list[str]:
    """Return a line for every run that has failed or cannot be read."""
    return [
        *(f"{name} failed: {error}" for name, error in found.failed.items()),
        *(f"{name} is left out: {error}" for name, error in found.unreadable.items()),
    ]


def cost(one: ArmOutcome) -> str:
    """Return the mean duration of an arm's runs as text."""
    seconds = one.mean("seconds")
    return "-" if seconds is None else duration(seconds)
