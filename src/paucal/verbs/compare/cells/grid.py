"""The grid of a comparison as stored in its folder, which all workers read and later calls may extend."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paucal.runner.run_folder import CHANGEABLE
from paucal.runs import RunFolder
from paucal.settings.options import flag
from paucal.types import UserError
from paucal.verbs.compare.arms import Arm
from paucal.wording import shortened

RECORD = "grid.json"
FORMAT = 1
EVAL = "eval"  # verb of cells that only evaluate a trained model
VERBS = ("train", "pretrain", "detect", "segment", EVAL)
PLACES = ("data", "data_root")  # locations of the images, which are identified by their fingerprint
FREE = (*PLACES, *CHANGEABLE)  # shared settings that do not change results


@dataclass(frozen=True)
class Grid:
    """All arms with all seeds.

    Attributes:
        folder: Folder of the comparison.
        fingerprint: Fingerprint of the images and their labels.
        shared: Settings that all runs share.
        arms: Ways to train.
        seeds: Seeds of every arm.
        rates: Learning rates to choose from on validation images, with the first seed; empty for no search.
        threads: Threads of each worker, so that results do not depend on the machine.
        forecast: Expected seconds of a run, by the arm's name.
        commands: Commands that created or extended the grid, in order.
        verb: Verb that makes the runs, one of `VERBS`.
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

    def result_settings(self) -> dict[str, Any]:
        """Return the shared settings that affect results."""
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
        UserError: There is no grid, or its file is damaged.
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
    """Raise a UserError if the images are not those of a stored grid."""
    if grid.fingerprint != fingerprint:
        raise UserError(
            f"--output: the images or labels differ from those of {str(grid.folder)!r} (some were added, "
            "removed, changed or relabelled): scores on different images cannot be compared. Restore them, or choose "
            "another folder."
        )


def merge_grids(old: Grid, new: Grid) -> Grid:
    """Return a stored grid extended by the arms and seeds of a new one.

    Raises:
        UserError: The two differ in images or settings.
    """
    require_images(old, new.fingerprint)
    if old.verb != new.verb:
        raise UserError(f"--output: {str(old.folder)!r} holds runs of 'paucal {old.verb}': choose another folder.")
    _require_same(old, old.result_settings(), new.result_settings())
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
        f"--output: {str(grid.folder)!r} holds another comparison ({flag(name)} was {shown[0]}, now {shown[1]}): a "
        "grid can only grow by methods, models, arms, shares and seeds; choose another folder."
    )


def _arm(value: Mapping[str, Any]) -> Arm:
    settings = dict(value["settings"])
    if not isinstance(settings.get("method", ""), str) or not all(
        isinstance(w, str) for w in settings.get("add") or ()
    ):
        raise TypeError("the method of an arm must be text")
    return Arm(str(value["way"]), _word(value["model"]), _word(value["share"]), settings, str(value.get("against", "")))


def _word(value: Any) -> str | None:
    return None if value is None else str(value)
