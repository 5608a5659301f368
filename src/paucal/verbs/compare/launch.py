"""`paucal.compare`: train every arm with every seed, and test whether differences between arms are significant."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.cores import threads_restored
from paucal.evaluation.comparison import Difference, ScoreOverSeeds
from paucal.methods.training_settings import TrainSettings
from paucal.reading import expand_user_path
from paucal.runner.console import Console, SilentConsole
from paucal.runner.frames import Data, takes_frames
from paucal.runs.folder import is_grid_folder
from paucal.settings.options import check_ranges, flag, setting_fields
from paucal.settings.values import given_names, settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.compare.findings import GridResults, read_grid_results
from paucal.verbs.compare.grid import Grid, read_grid, require_images
from paucal.verbs.compare.jobs import open_images
from paucal.verbs.compare.preparation import prepare_grid
from paucal.verbs.compare.report import (
    PAGE,
    failures,
    fairness_sentences,
    significance_sentences,
    terminal_table,
    write_report,
)
from paucal.verbs.compare.running import are_all_cells_final, require_workers, run_workers
from paucal.verbs.compare.settings import SET_BY_COMPARISON, UNSUPPORTED, GridSettings, make_arms
from paucal.wording import counted


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        folder: Folder of the runs, the tables and the HTML page.
        findings: Results of all finished runs.
        settled: Whether every run is done or has failed.
    """

    folder: Path
    findings: GridResults
    settled: bool

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def scores(self) -> dict[str, ScoreOverSeeds]:
        """Mean test accuracy over seeds with its interval, by arm name."""
        return {outcome.arm.name: outcome.top1 for outcome in self.findings.arms if outcome.top1 is not None}

    @property
    def differences(self) -> dict[str, Difference]:
        """Gain in test accuracy of each arm over its baseline, by arm name."""
        return {outcome.arm.name: outcome.gain for outcome in self.findings.arms if outcome.gain is not None}

    @property
    def failed(self) -> Mapping[str, str]:
        """Dict from the name of each failed run to its error message."""
        return self.findings.failed


@with_settings_signature(GridSettings)
@takes_frames
def compare(
    data: Data | None = None,
    *,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    ways: Mapping[str, Mapping[str, Any]] | None = None,
    resume: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Comparison:
    """Train every arm with every seed and compare the scores; the same as `paucal compare`.

    Args:
        data: Images, as in `paucal.train`.
        arms: Settings of `paucal.train` for further arms, by name of the arm; the same as `--arms` on the command line.
        ways: Old name of `arms`.
        resume: Folder of a stored comparison to resume.
        **settings: Fields of `paucal.verbs.compare.settings.GridSettings`, and settings of `paucal.train` that all
            runs share.

    Returns:
        Scores over seeds, and differences between arms, with their intervals.

    Raises:
        UserError: The data or a setting is invalid, or the comparison was stopped; the same call resumes it.
        TypeError: A setting does not exist.

    Example:
        >>> result = paucal.compare("photos/", methods=["supervised", "drloc"], epochs=20)  # doctest: +SKIP
        >>> result.differences["drloc"].value, result.differences["drloc"].clear  # doctest: +SKIP
        (0.012, False)
    """
    grid_names = setting_fields(GridSettings).keys()
    if arms is not None and ways is not None:
        raise TypeError("ways is the old name of arms: give arms alone.")
    grid_values = {name: value for name, value in settings.items() if name in grid_names}
    grid_settings = settings_from_keywords(GridSettings, grid_values, "paucal.compare", "compare")
    train_values = {name: value for name, value in settings.items() if name not in grid_names}
    shared = _train_values({**train_values, **({} if data is None else {"data": data})})
    for name in shared:
        if name in UNSUPPORTED:
            text = f"{flag(name)} is not supported for comparisons, since each of their runs is a single process"
            raise UserError(f"{text}: remove {flag(name)}.")
        if name in SET_BY_COMPARISON and name != "data":
            advice = {"method": "--methods", "model": "--models", "seed": "--seeds", "fraction": "--labels"}.get(name)
            raise UserError(f"{flag(name)} is set by the comparison: use {advice or '--arms'}.")
    named_arms = {name: _train_values(values) for name, values in (arms or ways or {}).items()}
    if resume is not None:
        result = resume_comparison(Path(os.fspath(resume)), grid_settings, SilentConsole())
    else:
        result = compare_all(grid_settings, shared, named_arms, f"paucal.compare({data!r}, ...)", SilentConsole())
    if not result.settled and grid_settings.jobs:
        raise UserError(f"the comparison was stopped; resume with: paucal.compare(resume={str(result.folder)!r}).")
    return result


@threads_restored()
def compare_all(
    grid_settings: GridSettings,
    shared: Mapping[str, Any],
    named_arms: Mapping[str, Mapping[str, Any]],
    command: str,
    console: Console,
) -> Comparison:
    """Create or extend a grid, and compute its runs; see `compare`. `named_arms` maps names of arms to settings."""
    # A stored grid may be finished and need no workers, so its workers are only checked when they are started.
    is_stored = grid_settings.output is not None and is_grid_folder(expand_user_path(grid_settings.output))
    _check_workers(grid_settings, 0 if is_stored else grid_settings.jobs)
    arms = make_arms(grid_settings, named_arms)
    grid = prepare_grid(grid_settings, arms, shared, command, console)
    if len(arms) == 1 and len(grid.arms) == 1:
        console.say(f"note: {arms[0].name} is the only arm, so there is nothing to compare")
    return _run_and_report(grid, grid_settings, console)


@threads_restored()
def resume_comparison(folder: Path, grid_settings: GridSettings, console: Console) -> Comparison:
    """Compute the unfinished runs of a stored grid, without changing the grid."""
    _check_workers(grid_settings, 0)
    names = ("methods", "models", "arms", "seeds", "labels", "lrs", "output")
    if given := [name for name in names if getattr(grid_settings, name)]:
        raise UserError(
            f"--resume continues a comparison without changes; to extend it, remove --resume and give "
            f"{flag(given[0])} with --output {folder}."
        )
    grid = read_grid(folder)
    if grid.verb != "train":
        raise UserError(f"{str(folder)!r} belongs to a study: use its own command, {grid.commands[-1]}.")
    if grid_settings.jobs and not are_all_cells_final(grid):
        images = open_images("train", {**grid.shared, **grid.arms[0].settings}, console)
        require_images(grid, images.fingerprint())
    return _run_and_report(grid, grid_settings, console)


def _check_workers(grid_settings: GridSettings, workers: int) -> None:
    check_ranges(grid_settings)
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise UserError("paucal compare starts its workers itself: call it without a launcher, with --jobs N.")
    require_workers(grid_settings.on, grid_settings.slurm, workers)


def _run_and_report(grid: Grid, grid_settings: GridSettings, console: Console) -> Comparison:
    resume_command = f"paucal compare --resume {shlex.quote(str(grid.folder))}"
    all_settled = run_workers(grid, grid_settings, resume_command, console)
    findings = read_grid_results(read_grid(grid.folder))
    page = write_report(findings)
    console.show(terminal_table(findings))
    for line in [*significance_sentences(findings), *fairness_sentences(findings), *failures(findings)]:
        console.say(line)
    if findings.failed:
        console.say("fix the cause of the failures, then repeat the failed runs with --retry")
    console.say(f"results are in {page.parent}: {PAGE} (open it in a browser), differences.csv, arms.csv, runs.csv")
    if not all_settled:
        left = sum(not state.is_final for state in findings.states.values())
        console.say(f"{counted(left, 'run')} left to compute; resume with: {resume_command}")
    return Comparison(grid.folder, findings, all_settled)


def _train_values(values: Mapping[str, Any]) -> dict[str, Any]:
    settings = settings_from_keywords(TrainSettings, values, "paucal.compare", "compare")
    return {name: getattr(settings, name) for name in given_names(values)}
