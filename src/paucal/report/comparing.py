"""The page of a comparison: what was shown, with its pictures, in one file that needs nothing beside it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from paucal.evaluation.figures import png_of
from paucal.report.page import template
from paucal.runs import write_text


@dataclass(frozen=True)
class ComparisonPage:
    """What the page says.

    Attributes:
        title: heading.
        verdicts: a sentence for every difference.
        warnings: what is missing: runs that failed, runs to come.
        rows: of the table, text by heading.
        bold: numbers of the rows whose difference the interval carries.
        fairness: sentences on what is equal and what is not.
        notes: sentences on how to read the numbers.
        pictures: figures with their captions.
        commands: that made it.
        runs: a row for every run, text by heading.
    """

    title: str
    verdicts: Sequence[str]
    warnings: Sequence[str]
    rows: Sequence[Mapping[str, str]]
    bold: frozenset[int]
    fairness: Sequence[str]
    notes: Sequence[str]
    pictures: Sequence[tuple[str, Figure]]
    commands: Sequence[str]
    runs: Sequence[Mapping[str, str]]


def write_comparison(path: Path, page: ComparisonPage) -> None:
    """Write the page; pictures are inside, nothing is loaded from anywhere, and no script runs."""
    pictures = [(caption, data_uri(figure)) for caption, figure in page.pictures]
    write_text(path, template("comparing.html").render(page=page, pictures=pictures))


def data_uri(figure: Figure) -> str:
    """Return a figure as the address of a PNG that is written into a page."""
    return "data:image/png;base64," + base64.b64encode(png_of(figure)).decode("ascii")
