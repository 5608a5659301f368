"""The report of a comparison: sentences on each difference, tables, figures, and the HTML page."""

import shlex
from pathlib import Path
from typing import Any

from rich.table import Table

from paucal.evaluation.comparison import Difference
from paucal.evaluation.plots import save_figure
from paucal.metrics.intervals import Score
from paucal.report.page import write_page
from paucal.report.pictures import data_uri
from paucal.settings.options import flag_words
from paucal.verbs.compare._figures import curves_figure, differences_figure, scores_figure
from paucal.verbs.compare.findings import ArmOutcome, GridResults
from paucal.verbs.compare.grid import EVAL, EVALUATION_FOLDER, MODEL, Cell, initial_weights_cell, verb_settings
from paucal.wording import counted, format_duration, images_text, percent
from paucal.writing import csv_text, write_text

PAGE = "comparison.html"
# Costs by which the training of two arms is compared: noun, attribute of `Outcome`, and largest ratio that counts as
# equal.
EFFORTS = (
    ("parameters", "parameters", 1.0005),
    ("multiply-adds per image", "macs", 1.0005),
    ("seconds per epoch", "epoch_seconds", 1.05),
    ("total time", "seconds", 1.05),
)
MIN_TESTED_DIFFERENCES = 3  # minimum number of differences for a warning about multiple comparisons
NOTES = (
    "mean and sd: mean and standard deviation (n - 1 in the denominator) of the test accuracy over seeds.",
    "difference: in percentage points, paired by seed and by test image. There are three 95 % intervals: for other "
    "seeds on these images (paired t), for these runs on other images (bootstrap of images, or of whole groups with "
    "--group-by), and for both combined (half-widths added in quadrature). Base claims on the combined interval.",
    "Bold: the combined interval of the difference excludes 0. A difference is never bold with a single seed, or if "
    "all seeds give the same difference.",
)
EPOCHS_BY_VALIDATION = (
    "The epoch of each run was chosen on its validation images; the test images were used once, after training."
)
LAST_EPOCHS = "No run had validation images, so each kept its last epoch. Test images were used once, after training."
SOME_EPOCHS_BY_VALIDATION = (
    "Runs with validation images chose their epoch on them; other runs kept the last epoch. Test images were used once."
)
DIFFERENCES_CAPTION = "Differences between arms; a difference is significant if its thickest bar excludes 0."
CURVES_CAPTION = "Validation accuracy: thin lines are runs, thick lines are the means of arms."
FIGURES = (
    (differences_figure, "differences.png", DIFFERENCES_CAPTION),
    (scores_figure, "scores.png", "Test accuracy of every run."),
    (curves_figure, "curves.png", CURVES_CAPTION),
)


def write_report(findings: GridResults) -> Path:
    """Write tables, figures, commands and the HTML page of a comparison, and return the path of the page."""
    grid, arms, states = findings.grid, findings.arms, findings.states
    folder = grid.folder
    write_tables(folder, findings)
    commands = ["# the comparison", *grid.commands, "", "# its runs, one by one", *map(command_of, states)]
    write_text(folder / "commands.txt", "".join(f"{line}\n" for line in commands))
    pictures = []
    for draw, name, caption in FIGURES:
        if (figure := draw(findings)) is not None:
            save_figure(folder / name, figure)
            pictures.append((caption, data_uri((folder / name).read_bytes())))
    method_names = list(dict.fromkeys(arm.arm.way for arm in arms))
    names = " against ".join(method_names) if len(method_names) < 4 else f"{counted(len(method_names), 'method')}"
    warnings = failures(findings)
    if n_unfinished := sum(not state.is_final for state in states.values()):
        warnings.append(f"{counted(n_unfinished, 'run')} of {len(states)} not yet computed: these results will change.")
    write_page(
        folder / PAGE,
        "comparing.html",
        title=f"{names} on {Path(str(grid.shared.get('data', 'digits'))).name}",
        verdicts=significance_sentences(findings),
        warnings=warnings,
        rows=arm_rows(findings),
        bold=frozenset(number for number, arm in enumerate(arms) if arm.gain is not None and arm.gain.clear),
        fairness=fairness_sentences(findings),
        notes=(*NOTES, describe_selection(findings)),
        pictures=pictures,
        commands=grid.commands,
        runs=_run_table_rows(findings),
    )
    return folder / PAGE


def command_of(cell: Cell) -> str:
    """Return the command that repeats a cell's run; if it starts from another run's weights, that run must exist."""
    start, values = initial_weights_cell(cell), verb_settings(cell.settings)
    data, output = values.pop("data", None), cell.run.path
    arguments = ["paucal", cell.verb]
    if cell.verb == EVAL:
        arguments.append(str(cell.settings[MODEL] if start is None else start.run.path))
        output = cell.folder / EVALUATION_FOLDER
    elif start is not None:
        values["init"] = str(start.run.path)
    arguments += [data] if data else []
    for name, value in {**values, "output": str(output)}.items():
        if value is not None:
            arguments += flag_words(name, value)
    return shlex.join(arguments)


def format_points(value: float) -> str:
    """Format a difference of two accuracies in percentage points, with its sign.

    Example:
        >>> format_points(0.0214), format_points(-0.003), format_points(-0.0001)
        ('+2.1', '-0.3', '+0.0')
    """
    return f"{round(100 * value, 1) or 0.0:+.1f}"


def format_interval(difference: Score) -> str:
    """Format the confidence interval of a difference in percentage points; "-" if the interval is unknown."""
    if difference.low is None or difference.high is None:
        return "-"
    return f"{format_points(difference.low)} to {format_points(difference.high)}"


def significance_sentences(findings: GridResults) -> list[str]:
    """Return a sentence for each difference that says whether the difference is significant."""
    return [_verdict(arm, arm.gain) for arm in findings.arms if arm.gain is not None]


def _verdict(arm: ArmOutcome, gain: Difference) -> str:
    n_seeds, baseline_name = len(gain.by_seed.values), arm.baseline
    basis = f"{counted(n_seeds, 'seed')}, {images_text(gain.images, gain.groups, 'test image')}"
    if gain.clear:
        adjective = "better" if gain.value > 0 else "worse"
        return (
            f"{arm.name} is {adjective} than {baseline_name} by {abs(100 * gain.value):.1f} points (95 % interval "
            f"{format_interval(gain.both)}; {basis})."
        )
    interval = "" if gain.both.low is None else f"95 % interval {format_interval(gain.both)}; "
    comparison = f"{arm.name} against {baseline_name}: {format_points(gain.value)} points ({interval}{basis})"
    if n_seeds == 1:
        return f"{comparison}. One seed cannot show how much training varies: use at least three."
    if gain.both.low is None and gain.value == 0:
        return f"{comparison}: with each seed, both are correct on the same number of test images."
    if gain.both.low is None:
        unit = "test image" if gain.groups is None else "group"
        reason = f"The same difference on every {unit} gives no interval for other {unit}s"
        return f"{comparison}. {reason}: use more {unit}s."
    if gain.by_seed.score.low is None:
        return (
            f"{comparison}. The interval only covers other test images: the same difference with every seed cannot "
            "show how much training varies. Use more seeds."
        )
    return f"{comparison}: no significant difference. {_describe_required_sample(gain)}"


def _describe_required_sample(gain: Difference) -> str:
    """Return a sentence on how many seeds and test images could detect a difference of the measured size."""
    if gain.value == 0 or gain.seeds_needed is None:
        return "No affordable number of seeds could detect a difference this small."
    parts = []
    if gain.seeds_needed > len(gain.by_seed.values):
        parts.append(f"about {gain.seeds_needed} seeds")
    if gain.images_needed is not None and gain.images_needed > gain.images:
        parts.append(f"{gain.images_needed:,} test images")
    remedies = " and ".join(parts) or "a few more seeds"
    return f"Detecting a difference of this size in four of five comparisons would take {remedies}."


def fairness_sentences(findings: GridResults) -> list[str]:
    """Return sentences on how equal the training of arms and baselines was: epochs, time, size and learning rate."""
    grid, arms_by_name = findings.grid, {arm.name: arm for arm in findings.arms}
    lines = [_describe_training_lengths(findings)]
    for arm in findings.arms:
        baseline = arms_by_name.get(arm.baseline)
        if baseline is not None and arm.outcomes and baseline.outcomes:
            lines.append(f"{arm.name} compared with {baseline.name}: {_compare_effort(arm, baseline)}.")
    if grid.rates:
        rates = ", ".join(f"{rate:g}" for rate in grid.rates)
        lines.append(
            f"The learning rate of each arm was chosen from the same values ({rates}) on the validation images of seed "
            f"{grid.seeds[0]}."
        )
    else:
        lines.append(
            "Learning rates were not searched (use --lrs): each arm uses --lr or the default of its method, "
            "which favours arms whose default suits these images by chance."
        )
    is_grouped = any({**grid.shared, **arm.settings}.get("group_by") for arm in grid.arms)
    if is_grouped and any(arm.gain is not None and arm.gain.groups is None for arm in findings.differences):
        lines.append(
            "The intervals assume independent test images, but images of one group (--group-by) are similar: the "
            "intervals are too narrow, and a difference may appear significant by chance."
        )
    if len(findings.differences) >= MIN_TESTED_DIFFERENCES:
        lines.append(
            f"{len(findings.differences)} differences are tested: if there were no real differences, one in "
            "twenty would appear significant by chance."
        )
    return lines


def _compare_effort(arm: ArmOutcome, baseline: ArmOutcome) -> str:
    ratios = []
    for noun, name, tolerance in EFFORTS:
        value, base_value = arm.mean(name), baseline.mean(name)
        if value and base_value:
            ratio = value / base_value
            is_equal = 1 / tolerance <= ratio <= tolerance
            ratios.append(f"the same {noun}" if is_equal else f"{ratio:.2f} times the {noun}")
    return "; ".join(ratios)


def _describe_training_lengths(findings: GridResults) -> str:
    epochs = {outcome.epochs for arm in findings.arms for outcome in arm.outcomes.values()}
    grid = findings.grid
    if "time" in grid.shared and not any({"time", "epochs"} & arm.settings.keys() for arm in grid.arms):
        minimum = f"{min(epochs)} to " if len(epochs) > 1 else ""
        epoch_range = f" ({minimum}{counted(max(epochs), 'epoch')})" if epochs else ""
        return f"All runs had the same time, {grid.shared['time']}, and trained as many epochs as fit{epoch_range}."
    if len(epochs) == 1:
        n_epochs = counted(epochs.pop(), "epoch")
        return f"All runs trained for {n_epochs}; their training times differ (use --time for equal times)."
    if not epochs:
        return "No run is finished yet."
    return f"The runs trained for {min(epochs)} to {max(epochs)} epochs, according to their settings."


def failures(findings: GridResults) -> list[str]:
    """Return a line for each run that failed or whose results cannot be read."""
    return [
        *(f"{name} failed: {error}" for name, error in findings.failed.items()),
        *(f"{name} is left out: {error}" for name, error in findings.unreadable.items()),
    ]


def describe_selection(findings: GridResults) -> str:
    """Return a sentence on how the epoch of each run was selected."""
    validated = [outcome.validation is not None for arm in findings.arms for outcome in arm.outcomes.values()]
    return EPOCHS_BY_VALIDATION if all(validated) else SOME_EPOCHS_BY_VALIDATION if any(validated) else LAST_EPOCHS


def arm_rows(findings: GridResults) -> list[dict[str, str]]:
    """Return a table row per arm: a dict from column names to formatted text."""
    rows = []
    for arm in findings.arms:
        top1, gain, seconds = arm.top1, arm.gain, arm.mean("seconds")
        failed = sum(state.name == "failed" and cell.arm == arm.arm for cell, state in findings.states.items())
        row = {
            "": arm.name,
            "runs": f"{len(arm.outcomes)} of {arm.expected}" + (f", {failed} failed" if failed else ""),
            "mean": "-" if top1 is None else percent(top1.score.value),
            "sd": "-" if top1 is None or top1.deviation is None else f"{100 * top1.deviation:.1f}",
            **dict.fromkeys(("difference", "other seeds", "other images", "95 % interval"), "-"),
            "time": "-" if seconds is None else format_duration(seconds),
        }
        if gain is not None:
            row |= {"difference": format_points(gain.value), "other seeds": format_interval(gain.by_seed.score)}
            row |= {"other images": format_interval(gain.over_images), "95 % interval": format_interval(gain.both)}
        if findings.grid.rates:
            row["rate"] = "-" if arm.rate is None else f"{arm.rate:g}"
        rows.append(row)
    return rows


def _run_table_rows(findings: GridResults) -> list[dict[str, str]]:
    rows = []
    for cell, state in findings.states.items():
        results = dict.fromkeys(("test", "validation", "epochs", "time"), "-")
        if outcome := findings.outcome_of(cell):
            results |= {"test": percent(outcome.scores["top1"]), "epochs": str(outcome.epochs)}
            results["time"] = format_duration(outcome.seconds)
            if outcome.validation is not None:
                results["validation"] = percent(outcome.validation)
        rows.append({"run": cell.name, "state": state.name, **results, "folder": cell.folder.name})
    return rows


def terminal_table(findings: GridResults) -> Table:
    """Return a table of the arms, with significant differences in bold."""
    hidden_columns = ("other seeds", "other images")  # only on the HTML page, since most terminals are too narrow
    rows = [{name: value for name, value in row.items() if name not in hidden_columns} for row in arm_rows(findings)]
    title = f"test accuracy over {counted(len(findings.grid.seeds), 'seed')}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for number, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row, arm in zip(rows, findings.arms, strict=True):
        table.add_row(*row.values(), style="bold" if arm.gain is not None and arm.gain.clear else None)
    return table


def write_tables(folder: Path, findings: GridResults) -> None:
    """Write `runs.csv` (a row per run), `arms.csv` (a row per arm) and `differences.csv`."""
    tables: dict[str, list[dict[str, Any]]] = {"runs": _run_csv_rows(findings), "arms": [], "differences": []}
    for arm in findings.arms:
        row: dict[str, Any] = {"arm": arm.arm.name, "seeds": len(arm.outcomes), "lr": arm.rate}
        for name, over_seeds in arm.scores.items():
            row |= {f"test_{name}": over_seeds.score.value, f"test_{name}_sd": over_seeds.deviation}
            row |= {f"test_{name}_low": over_seeds.score.low, f"test_{name}_high": over_seeds.score.high}
        means = ("validation", "epochs", "seconds", "epoch_seconds", "parameters", "macs")
        tables["arms"].append({**row, **{name: arm.mean(name) for name in means}})
        if (gain := arm.gain) is None:
            continue
        row = {"arm": arm.name, "against": arm.baseline, "seeds": len(gain.by_seed.values), "images": gain.images}
        row |= {"groups": gain.groups, "difference": gain.value, "sd": gain.by_seed.deviation}
        for name, score in (("seeds", gain.by_seed.score), ("images", gain.over_images), ("both", gain.both)):
            row |= {f"low_{name}": score.low, f"high_{name}": score.high}
        row |= {"clear": int(gain.clear), "seeds_needed": gain.seeds_needed, "images_needed": gain.images_needed}
        tables["differences"].append(row)
    for name, rows in tables.items():
        header = list(dict.fromkeys(key for row in rows for key in row))
        write_text(folder / f"{name}.csv", csv_text(header, *([row.get(key) for key in header] for row in rows)))


def _run_csv_rows(findings: GridResults) -> list[dict[str, Any]]:
    rows = []
    for cell, state in findings.states.items():
        row: dict[str, Any] = {
            "arm": cell.arm.name,
            **{name: getattr(cell.arm, name) for name in ("way", "model", "share")},
            "seed": cell.seed,
            "lr": cell.rate,
            "tried": int(cell.is_trial),
            "state": state.name,
            "folder": f"{cell.folder.parent.name}/{cell.folder.name}/run",
            "error": state.error,
        }
        if outcome := findings.outcome_of(cell):
            row |= {name: getattr(outcome, name) for name in ("epochs", "seconds", "parameters", "macs")}
            row["val_top1"] = outcome.validation
            row |= {f"test_{name}": value for name, value in outcome.scores.items()}
        rows.append(row)
    return rows
