"""The results of the runs of a grid, read from their folders."""

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
from paucal.verbs.compare.arms import Arm, baseline_of, short_names
from paucal.verbs.compare.cells.cell import Cell, State, cells_of, compared_cells, state_of, validation_score
from paucal.verbs.compare.cells.grid import Grid

MAX_BYTES = 1 << 30  # of a table of predictions: a million images with a hundred classes


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        cell: Cell of the run.
        scores: Test scores by name.
        validation: Validation accuracy; None without validation images.
        hits: Whether each test image was classified correctly, by the image's key.
        rows: Metrics of each epoch.
        seconds: Seconds of the run.
        epochs: Number of epochs.
        parameters: Number of parameters of the model.
        macs: Multiply-adds for one image without those of attention; None if they cannot be counted.
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
        """Seconds of training per epoch; None if only a probe was fitted."""
        return self.rows[-1]["seconds"] / len(self.rows) if self.rows else None


@dataclass(frozen=True)
class ArmOutcome:
    """The finished runs of an arm.

    Attributes:
        arm: Way to train.
        name: Short unique name of the arm.
        outcomes: Finished runs by seed.
        expected: Number of seeds of the grid.
        scores: Scores over seeds by name; empty without a finished run.
        baseline: Name of the arm that it is compared with; "" for the first one.
        gain: Gain in accuracy over the baseline on the common seeds; None without any.
        rate: Chosen learning rate; None if it was not searched.
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
        """Return the mean of an attribute over runs; None if a run lacks it."""
        values = [getattr(outcome, name) for outcome in self.outcomes.values()]
        return float(np.mean(values)) if values and None not in values else None


@dataclass(frozen=True)
class Findings:
    """The results of a grid so far.

    Attributes:
        grid: Stored grid.
        arms: Results of the arms, in the order of the grid.
        states: States of all cells.
        unreadable: Why the results of a finished run cannot be read, by its name.
    """

    grid: Grid
    arms: Sequence[ArmOutcome]
    states: Mapping[Cell, State]
    unreadable: Mapping[str, str]

    @property
    def failed(self) -> Mapping[str, str]:
        """Reasons of failed runs, by name."""
        return {cell.name: state.error for cell, state in self.states.items() if state.name == "failed"}

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return not self.unreadable and all(state.name == "done" for state in self.states.values())

    @property
    def differences(self) -> Sequence[ArmOutcome]:
        """The arms that were compared with a baseline."""
        return [outcome for outcome in self.arms if outcome.gain is not None]


def find(grid: Grid) -> Findings:
    """Read the results of a grid; runs whose files cannot be read are left out, with the reason."""
    cells = cells_of(grid)
    states = {cell: state_of(cell) for cell in cells}
    outcomes: dict[Arm, dict[int, Outcome]] = {arm: {} for arm in grid.arms}
    unreadable = {}
    compared = compared_cells(grid)
    for cell in compared:
        if states[cell].name == "done":
            try:
                outcomes[cell.arm][cell.seed] = outcome_of(cell)
            except (UserError, OSError, KeyError, TypeError, ValueError) as problem:
                unreadable[cell.name] = str(problem)
    rates = {cell.arm: cell.rate for cell in compared}
    names = dict(zip(grid.arms, short_names(grid.arms), strict=True))
    arms = [_arm_outcome(arm, outcomes, names, len(grid.seeds), rates.get(arm)) for arm in grid.arms]
    return Findings(grid, arms, states, unreadable)


def outcome_of(cell: Cell) -> Outcome:
    """Read the results of a finished run.

    Raises:
        UserError: A file is missing or damaged.
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
    """Return whether each test image was classified correctly, by its key.

    Raises:
        UserError: The table is missing or damaged.
    """
    path = run.evaluation("test") / "predictions.csv"
    try:
        lines = csv.DictReader(io.StringIO(read_text(path, MAX_BYTES, errors="surrogateescape"), newline=""))
        hits = {row["key"]: row["label"] == row["predicted"] for row in lines}
    except (OSError, KeyError, csv.Error) as problem:
        raise UserError(
            f"{str(path)!r} is missing or damaged ({problem}): remove the run and compare again."
        ) from problem
    if not hits:
        raise UserError(f"{str(path)!r} contains no image: remove the run and compare again.")
    return hits


def hit_table(outcomes: Sequence[Outcome], keys: Sequence[str]) -> NDArray[np.float64]:
    """Return (S, N) values: 1 for a hit, 0 for a miss, NaN for an image that a run has not tested."""
    place = {key: number for number, key in enumerate(keys)}
    table = np.full((len(outcomes), len(keys)), np.nan)
    for row, outcome in enumerate(outcomes):
        for key, hit in outcome.hits.items():
            table[row, place[key]] = hit
    return table


def gain_over(first: Mapping[int, Outcome], second: Mapping[int, Outcome]) -> Difference | None:
    """Return the gain in accuracy of one arm over another on their common seeds; None without any.

    Raises:
        UserError: Runs with the same seed were tested on different images.
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
    own, other = (hit_table([outcomes[seed] for seed in seeds], keys) for outcomes in (first, second))
    return difference(own, other)


def _arm_outcome(
    arm: Arm,
    by_arm: Mapping[Arm, Mapping[int, Outcome]],
    names: Mapping[Arm, str],
    seeds: int,
    rate: float | None,
) -> ArmOutcome:
    outcomes, baseline = by_arm[arm], baseline_of(arm, list(names))
    first = next(iter(outcomes.values()), None)
    scores = {
        name: repeated([outcome.scores[name] for outcome in outcomes.values() if name in outcome.scores])
        for name in (first.scores if first is not None else ())
    }
    if baseline is None:
        return ArmOutcome(arm, names[arm], outcomes, seeds, scores, rate=rate)
    gain = gain_over(outcomes, by_arm[baseline])
    return ArmOutcome(arm, names[arm], outcomes, seeds, scores, names[baseline], gain, rate)


def _macs(run: RunFolder) -> int | None:
    spec = read_card(run).backbone
    fitted = fit_to_image_size(spec.name, spec.image_size, spec.arguments).arguments
    cost = image_cost(spec.name, spec.image_size, {**spec.arguments, **fitted})
    return None if cost is None else cost.macs
