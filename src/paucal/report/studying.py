"""The page of a study: published beside measured, in one file that needs nothing beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from paucal.report.comparing import data_uri
from paucal.report.page import template
from paucal.runs import write_text


@dataclass(frozen=True)
class StudyPage:
    """What the page says.

    Attributes:
        title: heading.
        source: where the table is.
        scale: what was run, in a sentence.
        warnings: what is missing: runs that failed, runs to come.
        rows: of the table, text by heading.
        caveats: what the numbers have to be read with.
        settings: of each run, text by heading.
        comparisons: pages with curves and every run, as (name, path relative to this page).
        command: that made it.
        pictures: figures with their captions.
    """

    title: str
    source: str
    scale: str
    warnings: Sequence[str]
    rows: Sequence[Mapping[str, str]]
    caveats: Sequence[str]
    settings: Sequence[Mapping[str, str]]
    comparisons: Sequence[tuple[str, str]]
    command: str
    pictures: Sequence[tuple[str, Figure]] = ()


def write_study(path: Path, page: StudyPage) -> None:
    """Write the page; pictures are inside, nothing is loaded from anywhere, and no script runs."""
    pictures = [(caption, data_uri(figure)) for caption, figure in page.pictures]
    write_text(path, template("studying.html").render(page=page, pictures=pictures))
