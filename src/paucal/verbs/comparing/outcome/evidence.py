"""What the runs of a grid have come to, read from their folders."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.backbones.cost import image_cost
from paucal.backbones.sizing import fit_to_image_size
from paucal.evaluation.comparison import Difference, Repeated, difference, repeated
from paucal.evaluation.results import ClassificationReport
from paucal.models.saved import read_card
from paucal.reading import read_text
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.comparing.arms import Arm, baseline_of, short_names
from paucal.verbs.comparing.cells.cell import Cell, State, cells_of, compared_cells, state_of, validation_score
from paucal.verbs.comparing.cells.grid import Grid

MOST_BYTES = 1 << 30  # of a table of predictions: a million images of a hundred classes


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        cell: that it is of.
        scores: on the test images, by name.
        validation: share of the validation images that the model gives the right class; None without such images.
        hits: whether each test image was given its class, by the image's key.
        rows: of its epochs.
        seconds: it took.
        epochs: it trained.
        parameters: of its model.
        macs: multiply-adds for one image, without those of attention; None where they cannot be counted.
    """

    cell: Cell
    scores: Mapping[str, float]
    validation: float | None
    hits: Mapping[str, bool]
    rows: Sequence[Mapping[str, float]]
    seconds: float
    epochs: int
    parameters: int
    macs: int | None

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of training for each pass over the images; None where nothing was tuned."""
        return self.rows[-1]["seconds"] / len(self.rows) if self.rows else None


@dataclass(frozen=True)
class ArmOutcome:
    """The finished runs of an arm.

    Attributes:
        arm: the way to train.
        name: what tells it from the others of the grid.
        outcomes: by seed.
        expected: seeds there are in the grid.
        scores: over seeds, by name; empty without a finished run.
        baseline: the name of the arm that it is compared with; "" for the first one.
        gain: in accuracy over that arm, with the seeds that both have; None where there are none.
        rate: the learning rate that was chosen; None where none was.
    """

    arm: Arm
    name: str
    outcomes: Mapping[int, Outcome]
    expected: int
    scores: Mapping[str, Repeated]
    baseline: str = ""
    gain: Difference | None = None
    rate: float | None = None

    @property
    def top1(self) -> Repeated | None:
        """Accuracy over seeds."""
        return self.scores.get("top1")

    def mean(self, name: str) -> float | None:
        """Return the mean over runs of one of their numbers; None where some run lacks it."""
        values = [getattr(one, name) for one in self.outcomes.values()]
        return float(np.mean(values)) if values and None not in values else None


@dataclass(frozen=True)
class Findings:
    """Everything that a grid has come to until now.

    Attributes:
        grid: as it is stored.
        arms: in its order.
        states: of all cells.
        unreadable: why the results of a finished run cannot be used, by its name.
    """

    grid: Grid
    arms: Sequence[ArmOutcome]
    states: Mapping[Cell, State]
    unreadable: Mapping[str, str]

    @property
    def failed(self) -> Mapping[str, str]:
        """Why runs have failed, by their names."""
        return {cell.name: state.error for cell, state in self.states.items() if state.name == "failed"}

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return not self.unreadable and all(state.name == "done" for state in self.states.values())

    @property
    def differences(self) -> Sequence[ArmOutcome]:
        """The arms that could be compared with another one."""
        return [one for one in self.arms if one.gain is not None]


def find(grid: Grid) -> Findings:
    """Read what there is; a run whose files cannot be read is left out, with the reason."""
    cells = cells_of(grid)
    states = {cell: state_of(cell) for cell in cells}
    found: dict[Arm, dict[int, Outcome]] = {arm: {} for arm in grid.arms}
    unreadable = {}
    chosen = compared_cells(grid)
    for cell in chosen:
        if states[cell].name == "done":
            try:
                found[cell.arm][cell.seed] = outcome_of(cell)
            except (UserError, OSError, KeyError, TypeError, ValueError) as problem:
                unreadable[cell.name] = str(problem)
    rates = {cell.arm: cell.rate for cell in chosen}
    names = dict(zip(grid.arms, short_names(grid.arms), strict=True))
    arms = [_arm(arm, found, names, len(grid.seeds), rates.get(arm)) for arm in grid.arms]
    return Findings(grid, arms, states, unreadable)


def outcome_of(cell: Cell) -> Outcome:
    """Read the results of a finished run.

    Raises:
        UserError: a file is missing or damaged.
    """
    run = cell.run
    summary = run.read_json("summary.json")
    report = ClassificationReport.from_dict(run.read_json("evaluation/test/metrics.json"))
    try:
        validation = validation_score(run)
    except UserError:
        validation = None
    rows = run.read_rows()
    return Outcome(
        cell,
        report.values,
        validation,
        read_hits(run),
        rows,
        float(summary["seconds"]),
        len(rows),
        int(summary["parameters"]),
        _macs(run),
    )


def read_hits(run: RunFolder) -> dict[str, bool]:
    """Return whether each test image was given its class, by its key.

    Raises:
        UserError: the table is missing or damaged.
    """
    path = run.evaluation("test") / "predictions.csv"
    try:
        lines = csv.DictReader(io.StringIO(read_text(path, MOST_BYTES, errors="surrogateescape"), newline=""))
        hits = {row["key"]: row["label"] == row["predicted"] for row in lines}
    except (OSError, KeyError, csv.Error) as problem:
        raise UserError(
            f"{str(path)!r} is missing or damaged ({problem}): remove the run and compare again."
        ) from problem
    if not hits:
        raise UserError(f"{str(path)!r} holds no image: remove the run and compare again.")
    return hits


def hit_table(outcomes: Sequence[Outcome], keys: Sequence[str]) -> NDArray[np.float64]:
    """Return (S, N) 1 for a hit, 0 for a miss, and NaN for an image that a run has not tested."""
    place = {key: number for number, key in enumerate(keys)}
    table = np.full((len(outcomes), len(keys)), np.nan)
    for row, one in enumerate(outcomes):
        for key, hit in one.hits.items():
            table[row, place[key]] = hit
    return table


def gain_over(first: Mapping[int, Outcome], second: Mapping[int, Outcome]) -> Difference | None:
    """Return how much more accurate one arm is than another, with the seeds that both have; None where there are none.

    Raises:
        UserError: runs of the same seed were tested on different images.
    """
    seeds = [seed for seed in first if seed in second]
    if not seeds:
        return None
    for seed in seeds:
        if first[seed].hits.keys() != second[seed].hits.keys():
            raise UserError(
                f"the runs {first[seed].cell.name!r} and {second[seed].cell.name!r} were tested on different images, "
                "and their scores cannot be compared: remove the older one and compare again."
            )
    keys = sorted({key for seed in seeds for key in first[seed].hits})
    own, other = (hit_table([one[seed] for seed in seeds], keys) for one in (first, second))
    return difference(own, other)


def _arm(
    arm: Arm, found: Mapping[Arm, Mapping[int, Outcome]], names: Mapping[Arm, str], seeds: int, rate: float | None
) -> ArmOutcome:
    outcomes, baseline = found[arm], baseline_of(arm, list(names))
    first = next(iter(outcomes.values()), None)
    scores = {
        name: repeated([one.scores[name] for one in outcomes.values() if name in one.scores])
        for name in (first.scores if first is not None else ())
    }
    if baseline is None:
        return ArmOutcome(arm, names[arm], outcomes, seeds, scores, rate=rate)
    gain = gain_over(outcomes, found[baseline])
    return ArmOutcome(arm, names[arm], outcomes, seeds, scores, names[baseline], gain, rate)


def _macs(run: RunFolder) -> int | None:
    spec = read_card(run).backbone
    fitted = fit_to_image_size(spec.name, spec.image_size, spec.arguments).arguments
    cost = image_cost(spec.name, spec.image_size, {**spec.arguments, **fitted})
    return None if cost is None else cost.macs
