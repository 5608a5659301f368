"""The files of a comparison: tables, pictures, the commands that made it, and the page."""

import shlex
from pathlib import Path

from paucal.evaluation.figures import save_figure
from paucal.report.comparing import ComparisonPage, write_comparison
from paucal.runner.clock import duration
from paucal.runs import write_text
from paucal.settings.options import flag_words
from paucal.verbs.compare.cells.cell import Cell
from paucal.verbs.compare.cells.start import start_of
from paucal.verbs.compare.outcome.evidence import Findings
from paucal.verbs.compare.outcome.figures import curves_figure, differences_figure, scores_figure
from paucal.verbs.compare.outcome.tables import arm_rows, write_tables
from paucal.verbs.compare.outcome.words import failures, fairness, verdicts
from paucal.wording import counted, percent

PAGE, COMMANDS = "comparison.html", "commands.txt"
NOTES = (
    "mean and sd: of the test accuracy over seeds, with n - 1 in the denominator.",
    "difference: in percentage points, paired by seed and by test image. Three intervals of 95 %: what other seeds "
    "would give on these images (paired t), what these runs would give on other images (bootstrap), and both combined "
    "(their half-widths in quadrature), which is what a claim needs.",
    "Bold: a difference whose combined interval excludes 0; never one of a single seed.",
)
CHOSEN = "The epoch of each run was chosen by its validation images; the test images were read once, at its end."
LAST = "No run had validation images: each kept its last epoch; the test images were read once, at its end."
SOME = (
    "The epoch of each run that had validation images was chosen by them, the others kept their last; the test images "
    "were read once, at its end."
)
CAPTIONS = {
    "differences": "Differences; significant where the thickest bar excludes 0.",
    "scores": "Test accuracy of every run.",
    "curves": "Validation accuracy: thin lines are runs, thick lines their mean.",
}


def write_findings(found: Findings) -> Path:
    """Write tables, figures, commands and the page of a comparison, and return the path of the page."""
    folder = found.grid.folder
    write_tables(folder, found)
    write_text(folder / COMMANDS, "".join(f"{line}\n" for line in commands(found)))
    drawn = {"differences": differences_figure(found), "scores": scores_figure(found), "curves": curves_figure(found)}
    pictures = [(CAPTIONS[name], figure) for name, figure in drawn.items() if figure is not None]
    for name, figure in drawn.items():
        if figure is not None:
            save_figure(folder / f"{name}.png", figure)
    page = ComparisonPage(
        title=_title(found),
        verdicts=verdicts(found),
        warnings=[*failures(found), *_missing(found)],
        rows=arm_rows(found),
        bold=frozenset(n for n, one in enumerate(found.arms) if one.gain is not None and one.gain.clear),
        fairness=fairness(found),
        notes=(*NOTES, describe_selection(found)),
        pictures=pictures,
        commands=found.grid.commands,
        runs=_run_rows(found),
    )
    write_comparison(folder / PAGE, page)
    return folder / PAGE


def describe_selection(found: Findings) -> str:
    """Return a sentence on how the epoch of the runs was selected."""
    validated = [one.validation is not None for arm in found.arms for one in arm.outcomes.values()]
    return CHOSEN if all(validated) else SOME if any(validated) else LAST


def commands(found: Findings) -> list[str]:
    """Return the commands that made the grid, and those that would make each of its runs."""
    runs = [command_of(cell) for cell in found.states]
    return ["# the comparison", *found.grid.commands, "", "# its runs, one by one", *runs]


def command_of(cell: Cell) -> str:
    """Return the command that makes the run of a cell, once the run that it starts from is done."""
    start = start_of(cell)
    begin = {} if start is None else {"init": str(start.run.path)}
    values = {**cell.given, **begin, "output": str(cell.run.path)}
    data = values.pop("data", None)
    words = ["paucal", "train", *([data] if data else [])]
    for name, value in values.items():
        if value is not None and value is not False:
            words += flag_words(name, value)
    return shlex.join(words)


def _title(found: Findings) -> str:
    names = list(dict.fromkeys(one.arm.way for one in found.arms))
    data = Path(str(found.grid.shared.get("data", "digits"))).name
    return f"{' against '.join(names) if len(names) < 4 else counted(len(names), 'way') + ' to train'} on {data}"


def _missing(found: Findings) -> list[str]:
    left = sum(not state.settled for state in found.states.values())
    return [f"{counted(left, 'run')} of {len(found.states)} to come: these numbers will change."] if left else []


def _run_rows(found: Findings) -> list[dict[str, str]]:
    done = {one.cell.folder: one for arm in found.arms for one in arm.outcomes.values()}
    rows = []
    for cell, state in found.states.items():
        one = done.get(cell.folder)
        rows.append(
            {
                "run": cell.name,
                "state": state.name,
                "test": "-" if one is None else percent(one.scores["top1"]),
                "validation": "-" if one is None or one.validation is None else percent(one.validation),
                "epochs": "-" if one is None else str(one.epochs),
                "time": "-" if one is None else duration(one.seconds),
                "folder": cell.folder.name,
            }
        )
    return rows
