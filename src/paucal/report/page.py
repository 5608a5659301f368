"""HTML pages that are single files with embedded images and no scripts, such as the report about a run."""

import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from paucal.evaluation.record import NO_INTERVAL, score_lines
from paucal.evaluation.results import MultiLabelReport, scored_part
from paucal.report.explanations import (
    describe_confidence,
    headline_sentences,
    trained_model_rows,
    warning_sentences,
)
from paucal.report.inputs import RunFiles, read_run
from paucal.report.pictures import embed_pictures
from paucal.wording import percent
from paucal.writing import write_text

REPORT_FILE = "report.html"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into the run folder of a classifier, and return the path of the page.

    The page is self-contained: figures are embedded, nothing is loaded from the network, and there are no scripts.
    Sections whose files are missing are left out.
    """
    files = read_run(run_dir)
    report = files.evaluation
    figures = []  # large numbers at the top of the page, and the meaning of each number
    if report is not None:
        interval = score_lines(report)[0].interval
        if isinstance(report, MultiLabelReport):
            score, title = report.scores["map"], "mean average precision"
            baseline = (percent(report.chance), "by chance")
        else:
            score, title = report.scores["top1"], f"{scored_part(report)} accuracy"
            baseline = (percent(report.majority.top1), "majority class")
        figures = [(percent(score.value), f"{title}, {interval}"), baseline]
    return write_run_page(
        files,
        "classification.html",
        trained=trained_model_rows(files),
        figures=figures,
        headline=headline_sentences(files),
        warnings=warning_sentences(files),
        confidence=describe_confidence(files),
        report=report,
        scored_part=None if report is None else scored_part(report),
        is_multi_label=isinstance(report, MultiLabelReport),
        lines=[] if report is None else score_lines(report),
        counts=files.summary.class_counts,
        python_run=repr(str(files.run.path)),
    )


def write_run_page(files: RunFiles, name: str, trained: Mapping[str, str | None], **content: Any) -> Path:
    """Render the template `name` for a run, write it as `report.html` into the run folder, and return the path.

    `trained` has the names and texts of the table that describes the trained model; texts that are None are left out.
    """
    path, commands = files.run.path / REPORT_FILE, []
    if files.settings:
        verb, config = shlex.quote(files.verb), shlex.quote(str(files.run.config))
        commands.append(f"paucal {verb} --config {config}   # all settings as resolved, in a new folder")
    if "command" in files.environment:
        command = files.environment["command"]
        commands.append(f"{command}   # the original command; settings that it does not give are chosen again")
    write_page(
        path,
        name,
        title=files.summary.title or f"Run {files.run.path.resolve().name}",
        files=files,
        summary=files.summary,
        frozen=files.frozen,
        pictures=embed_pictures(files),
        repeat_commands=commands,
        trained={name: text for name, text in trained.items() if text is not None},
        shell_run=shlex.quote(str(files.run.path)),
        **content,
    )
    return path


def write_page(path: Path, name: str, **content: Any) -> None:
    """Render the jinja2 template `name` in the folder of this module, and write the page."""
    write_text(path, _environment().get_template(name).render(**content))


@cache  # once per process, since the environment caches compiled templates
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("paucal", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    environment.filters["share"] = lambda value: NO_INTERVAL if value is None else percent(value)
    environment.filters["capitalise"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["unbroken"] = lambda text: text.replace(" ", "\u00a0")
    return environment
