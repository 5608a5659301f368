"""The rungs of a finished run, for people: what each was worth on the validation images, and what it took."""

from collections.abc import Sequence
from typing import Any

from paucal.evaluation.yardstick import Yardstick
from paucal.training import Outcome
from paucal.verbs.run.forecast import duration
from paucal.verbs.training.finishing import Finish
from paucal.verbs.training.ladder.rungs import Rungs


def rung_rows(rungs: Rungs | None, outcome: Outcome, finish: Finish, measure: Yardstick) -> list[dict[str, Any]]:
    """Return a row per rung: name, score on the validation images, time, and whether it is the run's model."""
    if rungs is None or rungs.probe is None:
        return []
    probe, images = rungs.probe, rungs.probe.details.get("images", 0)
    rows = [
        _row(f"candidate {one.name}, by cross-validation on some training images", one.score, one.seconds)
        for one in rungs.race
    ]
    words = f"probe: linear head on frozen features of {images} images, {_size(probe.details.get('img_size'))} pixels"
    rows.append(_row(words, probe.score, probe.seconds, kept=not outcome.best and not finish.epochs))
    rows += [_row(f"trial: {one.name}", one.score, one.seconds) for one in rungs.trials]
    if outcome.rows:
        scores = [row[measure.column] for row in outcome.rows if measure.column in row]
        name = "tuned: the best epoch" if scores else "tuned: the last epoch"
        kept = bool(outcome.best) and not finish.epochs
        rows.append(_row(name, max(scores, default=None), outcome.seconds, kept=kept))
    if finish.epochs:
        rows.append(_row(averaged_words(finish), finish.score, 0.0, kept=True))
    return rows


def averaged_words(finish: Finish) -> str:
    """Return which epochs were averaged."""
    return f"the mean of the weights of epochs {', '.join(map(str, finish.epochs))}"


def kept_words(rungs: Rungs | None, outcome: Outcome, finish: Finish, selected: bool) -> str:
    """Return which state of a run is its model, and why."""
    if finish.epochs:
        return f"{averaged_words(finish)}, better on the validation images than any of them"
    if rungs is not None and rungs.probe is not None and not outcome.best:
        return "the probe: no epoch of tuning had more on the validation images" if outcome.rows else rungs.plan
    why = "the best of the validation images"
    if not selected:
        why = "the last: no images were kept for validation, so nothing was selected"
    return f"epoch {outcome.best.get('epoch', 0):g}, {why}"


def kept_score(rungs: Rungs | None, outcome: Outcome, finish: Finish, measure: Yardstick) -> float | None:
    """Return the score of the run's model on the validation images; None where unknown."""
    if finish.epochs:
        return finish.score
    if not outcome.best and rungs is not None and rungs.probe is not None:
        return rungs.probe.score
    return outcome.best.get(measure.column)


def whole_time(rungs: Rungs | None, outcome: Outcome) -> float:
    """Return the seconds that a run has taken, from opening the images to the end of training."""
    return outcome.seconds + (0.0 if rungs is None else rungs.spent)


def _row(name: str, score: float | None, seconds: float, kept: bool = False) -> dict[str, Any]:
    return {"name": name, "score": score, "time": duration(seconds), "kept": kept}


def _size(sides: Any) -> str:
    return "x".join(map(str, sides)) if isinstance(sides, Sequence) else "?"
