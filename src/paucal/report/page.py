"""The report: one page that holds everything about a run and needs nothing beside it."""

import shlex
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from paucal.evaluation.results import MultiLabelReport
from paucal.evaluation.tables import UNKNOWN, score_lines
from paucal.report.explanations import again, confidence_sentence, headline, trained, warnings
from paucal.report.inputs import Part, RunFiles, read_run
from paucal.report.pictures import pictures
from paucal.runs import write_text
from paucal.wording import percent

NAME = "report.html"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run folder from what lies there, and return its path.

    The page is self-contained: pictures are inside, nothing is loaded from anywhere, and no script runs.
    Files that are missing are left out of it.

    Raises:
        UserError: the folder does not exist, or one of its files is too large or damaged.
    """
    page = render(read_run(run_dir))
    path = run_dir / NAME
    write_text(path, page)
    return path


def render(files: RunFiles) -> str:
    """Return the page as text."""
    report = files.evaluation
    return template("template.html").render(
        title=files.summary.title or f"Run {files.run.path.resolve().name}",
        files=files,
        summary=files.summary,
        headline=headline(files),
        warnings=warnings(files),
        trained=trained(files),
        again=again(files),
        confidence=confidence_sentence(files),
        report=report,
        several=isinstance(report, MultiLabelReport),
        lines=[] if report is None else score_lines(report),
        class_counts=_class_counts(files.summary.parts),
        frozen=files.frozen,
        pictures=pictures(files),
        shell_run=shlex.quote(str(files.run.path)),
        python_run=repr(str(files.run.path)),
    )


def template(name: str) -> Template:
    """Return one of the templates beside this file."""
    environment = Environment(
        loader=PackageLoader("paucal", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    environment.filters["share"] = lambda value: UNKNOWN if value is None else percent(value)
    environment.filters["unbroken"] = lambda text: text.replace(" ", "\u00a0")
    return environment.get_template(name)


def _class_counts(parts) -> dict[str, list[int | None]]:
    """Return class -> number of images in each part, None for parts that do not know their classes."""
    known: list[Part] = list(parts)
    names = dict.fromkeys(name for part in known for name in part.classes)
    return {name: [p.classes.get(name, 0) if p.classes else None for p in known] for name in names}
