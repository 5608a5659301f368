"""The grid of a comparison, as it is stored in its folder: what every worker reads and anyone may let grow."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paucal.runs import RunFolder
from paucal.settings.options import flag
from paucal.types import UserError
from paucal.verbs.comparing.arms import Arm
from paucal.verbs.run.resuming import CHANGEABLE
from paucal.wording import shortened

RECORD = "grid.json"
FORMAT = 1
EVAL = "eval"  # the verb of cells that train nothing: what has been trained is judged
VERBS = ("train", "pretrain", "detect", "segment", EVAL)
PLACES = ("data", "data_root")  # where the images are: what they are is told by their fingerprint
FREE = (*PLACES, *CHANGEABLE)  # shared settings that do not change what a run comes to


@dataclass(frozen=True)
class Grid:
    """Every way to train, with every seed.

    Attributes:
        folder: of the comparison.
        fingerprint: of the images and their labels.
        shared: settings that all runs have.
        arms: the ways to train.
        seeds: of every arm.
        rates: of which each arm has one chosen on validation images, with the first seed; none where none is chosen.
        threads: of each worker's arithmetic, so that results are the same whoever computes them.
        forecast: seconds that a run of an arm should take, by the arm's name.
        commands: that have asked for the grid, in their order.
        verb: that makes the runs, of those in `VERBS`.
    """

    folder: Path
    fingerprint: str
    shared: Mapping[str, Any]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...] = ()
    threads: int = 1
    forecast: Mapping[str, float] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    verb: str = "train"

    def lasting(self) -> dict[str, Any]:
        """Return the shared settings that decide what a run comes to."""
        return {name: value for name, value in self.shared.items() if name not in FREE}

    def write(self) -> None:
        """Store the grid."""
        arms = [{**vars(arm), "settings": dict(arm.settings)} for arm in self.arms]
        content = {name: value for name, value in vars(self).items() if name not in ("folder", "arms")}
        RunFolder(self.folder).write_json(RECORD, {"format": FORMAT, **content, "arms": arms})


def is_grid(folder: Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (folder / RECORD).is_file()


def read_grid(folder: Path) -> Grid:
    """Read a grid.

    Raises:
        UserError: there is none, or its file is damaged.
    """
    if not is_grid(folder):
        raise UserError(f"{str(folder)!r} holds no comparison (no {RECORD}): check the path.")
    stored = RunFolder(folder).read_json(RECORD)
    try:
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']!r}")
        grid = Grid(
            folder,
            str(stored["fingerprint"]),
            dict(stored["shared"]),
            tuple(_arm(value) for value in stored["arms"]),
            tuple(int(seed) for seed in stored["seeds"]),
            tuple(float(rate) for rate in stored["rates"]),
            int(stored["threads"]),
            {str(name): float(seconds) for name, seconds in stored["forecast"].items()},
            tuple(map(str, stored["commands"])),
            str(stored.get("verb", "train")),
        )
        if not grid.arms or not grid.seeds or grid.threads < 1:
            raise ValueError("it has no arms, no seeds or no threads")
        if grid.verb not in VERBS:
            raise ValueError(f"its runs are made by {grid.verb!r}")
        return grid
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{str(folder / RECORD)!r} is damaged ({problem}): restore it.") from problem


def require_images(grid: Grid, fingerprint: str) -> None:
    """Raise a UserError where images are not those that a stored grid was made with."""
    if grid.fingerprint != fingerprint:
        raise UserError(
            f"--output: the images or labels are not those that {str(grid.folder)!r} was made with (some were added, "
            "removed, changed or relabelled): scores on different images cannot be compared. Restore them, or choose "
            "another folder."
        )


def grown(old: Grid, new: Grid) -> Grid:
    """Return a stored grid with the arms and seeds that are asked for now beside its own.

    Raises:
        UserError: the two are of other images or settings.
    """
    require_images(old, new.fingerprint)
    if old.verb != new.verb:
        raise UserError(f"--output: {str(old.folder)!r} holds runs of 'paucal {old.verb}': choose another folder.")
    _require_same(old, old.lasting(), new.lasting())
    if old.rates != new.rates:
        raise UserError(_other(old, "lrs", old.rates or None, new.rates or None))
    known = {arm.name: arm for arm in old.arms}
    for arm in new.arms:
        if arm.name in known:
            _require_same(old, known[arm.name].settings, arm.settings)
    more = tuple(arm for arm in new.arms if arm.name not in known)
    seeds = tuple(seed for seed in new.seeds if seed not in old.seeds)
    commands = tuple(dict.fromkeys((*old.commands, *new.commands)))
    forecast = {**old.forecast, **new.forecast}
    return replace(
        old,
        shared={**new.shared},
        arms=(*old.arms, *more),
        seeds=(*old.seeds, *seeds),
        forecast=forecast,
        commands=commands,
    )


def _require_same(grid: Grid, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            raise UserError(_other(grid, name, old.get(name), new.get(name)))


def _other(grid: Grid, name: str, old: Any, new: Any) -> str:
    shown = [
        shortened(str(list(v) if isinstance(v, tuple) else v), 60) if v is not None else "not given" for v in (old, new)
    ]
    return (
        f"--output: {str(grid.folder)!r} holds another comparison ({flag(name)} was {shown[0]}, and is {shown[1]}): a "
        "grid grows by methods, models, arms, shares and seeds alone; choose another folder."
    )


def _arm(value: Mapping[str, Any]) -> Arm:
    settings = dict(value["settings"])
    if not isinstance(settings.get("method", ""), str) or not all(
        isinstance(w, str) for w in settings.get("add") or ()
    ):
        raise TypeError("the method of an arm is no word")
    return Arm(str(value["way"]), _word(value["model"]), _word(value["share"]), settings, str(value.get("against", "")))


def _word(value: Any) -> str | None:
    return None if value is None else str(value)
