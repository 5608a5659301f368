"""The result of a run, and the last step of a run: write its summary and its report page, and print its results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rich.table import Table

from paucal.runner.console import Console
from paucal.runner.frames import read_table, to_pandas
from paucal.runner.job import FinishedRun
from paucal.runs import RunFolder

if TYPE_CHECKING:
    from pandas import DataFrame


class _HasValues(Protocol):
    """A report whose `values` are the test scores by name."""

    @property
    def values(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class EvaluatedRun(FinishedRun):
    """A finished run with a report of its test scores and their confidence intervals."""

    predictions_file: ClassVar[str] = "predictions.csv"

    report: _HasValues
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """The test scores without intervals, by name."""
        return self.report.values

    @property
    def test_scores(self) -> dict[str, float]:
        """The test scores by name; the same as `metrics`."""
        return self.metrics

    @property
    def predictions(self) -> "DataFrame":
        """A DataFrame with a row per test image, read from `evaluation/test/`.

        Raises: UserError: The file is missing or damaged, or pandas is not installed.
        """
        return to_pandas(read_table(RunFolder(self.folder).evaluation("test") / self.predictions_file))


def publish_results(
    run: RunFolder,
    console: Console,
    summary: Mapping[str, Any],
    write_page: Callable[[Path], Path],
    lines: Sequence[str],
    files: str,
    next_steps: Sequence[str],
    table: Table | None = None,
) -> None:
    """Write `summary.json` and the report page of a finished run, and print its results.

    `write_page` writes the page of a run folder and returns its path. `files` is a text that names further result
    files.
    """
    run.write_json("summary.json", dict(summary))
    page = write_page(run.path)
    if table is not None:
        console.show(table)
    results = f"results are in {run.path}: {page.name} (open it in a browser), {run.weights.name}, {files}"
    for line in ("", *lines, results, "try next:", *(f"  {step}" for step in next_steps)):
        console.say(line)
