"""What a run has found out on its way up: written after every step, so that a run that is stopped goes on there."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paucal.runs import RunFolder
from paucal.types import UserError

FILE = "rungs.json"


@dataclass(frozen=True)
class Rung:
    """A model that was judged on validation images.

    Attributes:
        name: "probe", or what was tried.
        score: share of the validation images that it gives the right class, or mean average precision of several
            labels; of cross-validation where these are few.
        seconds: it took.
        details: what it was made with, as plain values.
    """

    name: str
    score: float
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rungs:
    """The state of the ladder.

    Attributes:
        candidates: timm names of the weights at hand.
        budget: seconds that the whole run may take.
        spent: seconds until now, over all calls.
        race: what each candidate was worth on a part of the images.
        probe: the linear head on frozen features; None before it is there.
        sizes: seconds for a training image, by its size and the stages that are frozen; None where a step does not fit
            in the memory.
        tuning: image size, seconds of a pass and steps of a trial of each way to tune that was looked at; None for a
            way for which there is no time or no memory.
        trials: short trainings, one for each way to tune that was tried.
        plan: a sentence on what comes next and how long it takes; "" before it is made.
        tune: whether tuning follows the probe.
    """

    candidates: tuple[str, ...] = ()
    budget: float = 0.0
    spent: float = 0.0
    race: tuple[Rung, ...] = ()
    probe: Rung | None = None
    sizes: Mapping[str, float | None] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[Rung, ...] = ()
    plan: str = ""
    tune: bool = True

    def write(self, run: RunFolder) -> "Rungs":
        """Store the state in the run's folder; returns it."""
        run.write_json(FILE, asdict(self))
        return self

    def but(self, **changes: Any) -> "Rungs":
        """Return the state with changes."""
        return replace(self, **changes)


def read_rungs(run: RunFolder | None) -> Rungs | None:
    """Read the state; None where a run climbs no ladder.

    Raises:
        UserError: the file is damaged.
    """
    if run is None or not (run.path / FILE).is_file():
        return None
    stored = run.read_json(FILE)
    try:
        return Rungs(
            tuple(map(str, stored["candidates"])),
            float(stored["budget"]),
            float(stored["spent"]),
            tuple(map(_rung, stored["race"])),
            None if stored["probe"] is None else _rung(stored["probe"]),
            {str(side): None if each is None else float(each) for side, each in stored["sizes"].items()},
            dict(stored["tuning"]),
            tuple(map(_rung, stored["trials"])),
            str(stored["plan"]),
            bool(stored["tune"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{str(run.path / FILE)!r} is damaged ({problem}): restore it or train anew.") from problem


def _rung(value: Mapping[str, Any]) -> Rung:
    return Rung(str(value["name"]), float(value["score"]), float(value["seconds"]), dict(value["details"]))
