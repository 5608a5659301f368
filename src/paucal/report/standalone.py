"""The pages of a data check, a comparison and a study, each a single file with its pictures and without scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from paucal.evaluation.plots import png_of
from paucal.report.page import template
from paucal.report.pictures import data_uri
from paucal.runs import write_text


@dataclass(frozen=True)
class Thumb:
    """A thumbnail with its class and split, or a remark on it; `jpeg` is None for an image that cannot be read."""

    key: str
    words: str
    jpeg: bytes | None

    @property
    def uri(self) -> str | None:
        """The picture as a data URI."""
        return None if self.jpeg is None else data_uri(self.jpeg, "jpeg")


@dataclass(frozen=True)
class Section:
    """A finding of a data check.

    Attributes:
        level: "misleads", "warning" or "note".
        rows: Images; images that belong together are in one row.
        more: Sentence about images that are not shown.
    """

    title: str
    level: str
    text: str
    advice: str
    rows: Sequence[Sequence[Thumb]]
    more: str = ""


def write_check_page(
    path: Path,
    *,
    title: str,
    figures: Sequence[tuple[str, str]],
    facts: Sequence[tuple[str, str]],
    per_class: Mapping[str, Mapping[str, int]],
    sections: Sequence[Section],
    sheet: bytes,
) -> None:
    """Write the page of a data check.

    `figures` are (number, meaning) pairs of the headline, `facts` (heading, value) pairs of the table, `per_class`
    numbers of images by split and class, and `sheet` is a JPEG of a few images of every class.
    """
    names = list(next(iter(per_class.values()), {}))
    content = template("checking.html").render(
        title=title,
        figures=figures,
        facts=facts,
        parts=list(per_class),
        counts={name: [counts[name] for counts in per_class.values()] for name in names},
        sections=sections,
        sheet=data_uri(sheet, "jpeg"),
    )
    write_text(path, content)


@dataclass(frozen=True)
class ComparisonPage:
    """Content of the page of a comparison.

    Attributes:
        verdicts: Sentence for every difference.
        warnings: Sentences on failed and missing runs.
        bold: Indices of the rows whose interval excludes 0.
        fairness: Sentences on the resources of the runs compared with each other.
        runs: A row for every run, text by heading.
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


@dataclass(frozen=True)
class StudyPage:
    """Content of the page of a study, with published and measured numbers side by side.

    Attributes:
        source: Place of the published table.
        scale: Sentence on what was run.
        warnings: Sentences on failed and missing runs.
        caveats: Sentences on the limits of the numbers.
        comparisons: Pages with curves and every run, as (name, path relative to this page).
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


def write_standalone(path: Path, page: ComparisonPage | StudyPage) -> None:
    """Write the page of a comparison or of a study."""
    pictures = [(caption, data_uri(png_of(figure))) for caption, figure in page.pictures]
    name = "comparing.html" if isinstance(page, ComparisonPage) else "studying.html"
    write_text(path, template(name).render(page=page, pictures=pictures))
