"""Results of the runs of a grid, read from the run folders, and differences between arms (training configurations)."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paucal.backbones.cost import image_cost
from paucal.backbones.sizing import fit_to_image_size
from paucal.data.splits.split_csv import read_rows
from paucal.evaluation.comparison import Difference, ScoreOverSeeds, difference, score_over_seeds
from paucal.evaluation.results import ClassificationReport
from paucal.models.trained import read_card
from paucal.reading import read_text
from paucal.runs.folder import read_scores
from paucal.types import UserError
from paucal.verbs.compare.grid import Cell, Grid, State, cells_of, compared_cells, state_of, validation_score
from paucal.verbs.compare.settings import Arm, baseline_of

MAX_BYTES = 1 << 30  # size limit of a predictions file; enough for a million images and a hundred classes
# File of the test scores below the run folder, by command.
SCORE_FILES = {"detect": "evaluation/detection/metrics.json", "segment": "evaluation/test/segmentation.json"}
Scores = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Outcome:
    """Results of a finished run."""

    cell: Cell
    scores: Mapping[str, float]  # test scores by name, such as "top1"
    validation: float | None  # validation accuracy; None if there are no validation images
    hits: Mapping[str, bool]  # whether each test image was classified correctly, by the image's key
    groups: Mapping[str, str] | None  # group of each test image (`--group-by`), by key; None if no groups are stored
    rows: Sequence[Mapping[str, float]]  # metrics of each epoch
    seconds: float
    epochs: int
    parameters: int
    macs: int | None  # multiply-adds per image, without the matrix products in attention; None if they are unknown

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of training per epoch; None if no epoch was trained."""
        return self.rows[-1]["seconds"] / len(self.rows) if self.rows else None


@dataclass(frozen=True)
class ArmOutcome:
    """Results of an arm's finished runs."""

    arm: Arm
    name: str  # short unique name of the arm
    outcomes: Mapping[int, Outcome]  # results by seed
    expected: int  # number of runs that the arm has when all seeds of the grid are finished
    scores: Mapping[str, ScoreOverSeeds]
    baseline: str = ""  # name of the arm that this arm is compared with; "" if there is none
    # Gain in accuracy over the baseline, on the seeds that both arms have finished; None if there are no such seeds.
    gain: Difference | None = None
    rate: float | None = None  # chosen learning rate; None if learning rates were not searched

    @property
    def top1(self) -> ScoreOverSeeds | None:
        """Test accuracy over seeds; None if no run is finished."""
        return self.scores.get("top1")

    def mean(self, name: str) -> float | None:
        """Return the mean over runs of the attribute `name` of `Outcome`; None if the attribute is None for any run."""
        values = [getattr(outcome, name) for outcome in self.outcomes.values()]
        return float(np.mean(values)) if values and None not in values else None


@dataclass(frozen=True)
class GridResults:
    """The results of a grid so far."""

    grid: Grid
    arms: Sequence[ArmOutcome]
    states: Mapping[Cell, State]
    unreadable: Mapping[str, str]  # error message of each finished run whose results cannot be read, by its name

    @property
    def failed(self) -> Mapping[str, str]:
        """Dict from the name of each failed run to its error message."""
        return {cell.name: state.error for cell, state in self.states.items() if state.name == "failed"}

    @property
    def differences(self) -> Sequence[ArmOutcome]:
        """Results of the arms that are compared with a baseline."""
        return [outcome for outcome in self.arms if outcome.gain is not None]

    def outcome_of(self, cell: Cell) -> Outcome | None:
        """Return the results of a cell's run; None if the run is unfinished, unreadable or not compared."""
        outcomes = (outcome for arm in self.arms for outcome in arm.outcomes.values())
        return next((outcome for outcome in outcomes if outcome.cell.folder == cell.folder), None)


def read_grid_results(grid: Grid) -> GridResults:
    """Read the results of a grid; runs whose files cannot be read are listed in `unreadable`."""
    states = {cell: state_of(cell) for cell in cells_of(grid)}
    compared = compared_cells(grid)
    outcomes: dict[Arm, dict[int, Outcome]] = {arm: {} for arm in grid.arms}
    unreadable = {}
    for cell in compared:
        if states[cell].name == "done":
            try:
                outcomes[cell.arm][cell.seed] = read_outcome(cell)
            except (UserError, OSError, KeyError, TypeError, ValueError) as problem:
                unreadable[cell.name] = str(problem)
    rates = {cell.arm: cell.rate for cell in compared}
    # A model or fraction of images that all arms have in common is omitted from their names.
    common = [name for name in ("model", "share") if len({getattr(arm, name) for arm in grid.arms}) == 1]
    names = {arm: replace(arm, **dict.fromkeys(common)).name for arm in grid.arms}
    arms = []
    for arm, seed_outcomes in outcomes.items():
        scores = {}
        for name in next(iter(seed_outcomes.values())).scores if seed_outcomes else ():
            by_seed = [outcome.scores[name] for outcome in seed_outcomes.values() if name in outcome.scores]
            scores[name] = score_over_seeds(by_seed)
        baseline, baseline_name, gain = baseline_of(arm, grid.arms), "", None
        if baseline is not None:
            baseline_name, gain = names[baseline], compute_gain(seed_outcomes, outcomes[baseline])
        n_seeds, rate = len(grid.seeds), rates.get(arm)
        arms.append(ArmOutcome(arm, names[arm], seed_outcomes, n_seeds, scores, baseline_name, gain, rate))
    return GridResults(grid, arms, states, unreadable)


def read_outcome(cell: Cell) -> Outcome:
    """Read the results of a finished run of `paucal train`."""
    run = cell.run
    summary = run.read_json("summary.json")
    report = ClassificationReport.from_dict(run.read_json("evaluation/test/metrics.json"))
    try:
        validation = validation_score(run)
    except UserError:
        validation = None
    rows, spec = run.read_rows(), read_card(run).backbone
    fitted = fit_to_image_size(spec.name, spec.image_size, spec.arguments).arguments
    cost = image_cost(spec.name, spec.image_size, {**spec.arguments, **fitted})
    path, groups = run.evaluation("test") / "predictions.csv", None
    try:
        lines = csv.DictReader(io.StringIO(read_text(path, MAX_BYTES, errors="surrogateescape"), newline=""))
        hits = {row["key"]: row["label"] == row["predicted"] for row in lines}
    except (OSError, KeyError, csv.Error) as problem:
        text = f"{str(path)!r} is missing or damaged ({problem})"
        raise UserError(f"{text}: remove the run folder and compare again.") from problem
    if not hits:
        raise UserError(f"{str(path)!r} contains no image: remove the run folder and compare again.")
    if cell.settings.get("group_by") or cell.settings.get("split"):
        groups = {row["key"]: row["group"] for row in read_rows(run.split) if "group" in row and row["key"] in hits}
    groups = groups if groups and len(groups) == len(hits) else None
    seconds, parameters, macs = float(summary["seconds"]), int(summary["parameters"]), cost.macs if cost else None
    return Outcome(cell, report.values, validation, hits, groups, rows, seconds, len(rows), parameters, macs)


def compute_gain(arm_outcomes: Mapping[int, Outcome], baseline_outcomes: Mapping[int, Outcome]) -> Difference | None:
    """Return the gain in accuracy of an arm over a baseline on their common seeds; None without a common seed."""
    seeds = [seed for seed in arm_outcomes if seed in baseline_outcomes]
    if not seeds:
        return None
    for seed in seeds:
        if arm_outcomes[seed].hits.keys() != baseline_outcomes[seed].hits.keys():
            raise UserError(
                f"the runs {arm_outcomes[seed].cell.name!r} and {baseline_outcomes[seed].cell.name!r} were tested on "
                "different images, so their scores cannot be compared: remove the older run folder and compare again."
            )
    keys = sorted({key for seed in seeds for key in arm_outcomes[seed].hits})
    # (S, N) values for S seeds and N images: 1 if correct, 0 if wrong, NaN if the run was not tested on the image.
    values, other = (
        np.array([[outcomes[seed].hits.get(key, np.nan) for key in keys] for seed in seeds], dtype=np.float64)
        for outcomes in (arm_outcomes, baseline_outcomes)
    )
    groups = _common_groups([outcomes[seed] for outcomes in (arm_outcomes, baseline_outcomes) for seed in seeds])
    return difference(values, other, groups=None if groups is None else [groups[key] for key in keys])


def _common_groups(outcomes: Iterable[Outcome]) -> Mapping[str, str] | None:
    """Return the groups of test images by image key; None if a run has none, or if they differ between runs."""
    groups: dict[str, str] = {}
    for outcome in outcomes:
        stored = outcome.groups
        if stored is None or any(groups.setdefault(key, group) != group for key, group in stored.items()):
            return None
    return groups


def scores_of(cell: Cell) -> Scores:
    """Return the scores of a finished cell of a command other than `paucal train`, by name.

    These are the scores at the end of the run, such as "ap50" and "mean_iou", and those of the additional evaluation,
    such as "knn" and "mean_iou_scales". Of each score, "trained" is the value of the trained model, "low" and "high"
    are the ends of the interval over test images if there is one, and "random" is the value of random weights, for
    frozen features only.
    """
    evaluation = read_scores(cell.folder) if cell.is_evaluated else {}
    if cell.verb not in SCORE_FILES:
        return evaluation
    name = SCORE_FILES[cell.verb]
    values = cell.run.read_json(name)
    if cell.verb == "detect":
        values, intervals = values.get("scores"), values.get("intervals", {})
        values = {**values, **intervals} if isinstance(values, dict) and isinstance(intervals, dict) else None
    if not isinstance(values, dict):
        raise UserError(f"{str(cell.run.path / name)!r} is damaged: remove the run folder and run again.")
    names, scores = {"value": "trained", "low": "low", "high": "high"}, {}
    for key, stored in values.items():
        stored = stored if isinstance(stored, dict) else {"value": stored}
        score = {
            name: float(stored[stored_name])
            for stored_name, name in names.items()
            if isinstance(stored.get(stored_name), int | float) and not isinstance(stored[stored_name], bool)
        }
        if "trained" in score:  # an interval needs both ends
            scores[key] = score if len(score) == 3 else {"trained": score["trained"]}
    return {**scores, **evaluation}
