"""The pages of a data check, a comparison and a study: single HTML files with embedded images and no scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from paucal.evaluation.plots import render_png
from paucal.report.page import load_template
from paucal.report.pictures import data_uri
from paucal.runs import write_text


@dataclass(frozen=True)
class Thumbnail:
    """A thumbnail of an image.

    Attributes:
        key: Key of the image.
        words: Text below the thumbnail: class and split of the image, or a remark.
        jpeg: Content of a JPEG file; None if the image cannot be read.
    """

    key: str
    words: str
    jpeg: bytes | None

    @property
    def uri(self) -> str | None:
        """The thumbnail as a data URI; None if the image cannot be read."""
        return None if self.jpeg is None else data_uri(self.jpeg, "jpeg")


@dataclass(frozen=True)
class Section:
    """The section of the page about one finding of a data check.

    Attributes:
        title: Heading of the section.
        level: "misleads", "warning" or "note".
        text: Sentence that states the finding.
        advice: Sentence that says what to do; "" if there is no advice.
        rows: Rows of thumbnails; images that belong together, such as copies, are in the same row.
        more: Sentence about images that are not shown; "" if all images are shown.
    """

    title: str
    level: str
    text: str
    advice: str
    rows: Sequence[Sequence[Thumbnail]]
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

    Args:
        path: Path of the page.
        title: Title of the page.
        figures: (number, name) pairs at the top of the page.
        facts: (name, value) pairs of the table that describes the data.
        per_class: Number of images by split, then by class.
        sections: Sections about the findings.
        sheet: Content of a JPEG file that shows a few images of each class.
    """
    names = list(next(iter(per_class.values()), {}))
    content = load_template("checking.html").render(
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
    """The content of the page of a comparison.

    Attributes:
        title: Title of the page.
        verdicts: One sentence for each difference between methods.
        warnings: Sentences about failed and missing runs.
        rows: Rows of the table of scores, as texts by column heading.
        bold: Indices of the rows in bold, in which the confidence interval of the difference excludes 0.
        fairness: Sentences about differences in the resources that the compared runs used.
        notes: Sentences below the table of scores.
        pictures: (caption, figure) pairs.
        commands: Commands that produced the comparison.
        runs: Rows of the table of runs, as texts by column heading.
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
    """The content of the page of a study, which shows published and measured numbers side by side.

    Attributes:
        title: Title of the page.
        source: Reference of the published table.
        scale: Sentence that says which runs were made and at which size, or how the numbers were obtained.
        warnings: Sentences about failed and missing runs.
        rows: Rows of the table of numbers, as texts by column heading.
        caveats: Sentences about the limits of the numbers.
        settings: Texts "run" (name), "images" and "settings" of each run.
        comparisons: (name, path relative to this page) pairs of pages with the curves of all runs.
        command: Command that repeats the study.
        pictures: (caption, figure) pairs.
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
    pictures = [(caption, data_uri(render_png(figure))) for caption, figure in page.pictures]
    name = "comparing.html" if isinstance(page, ComparisonPage) else "studying.html"
    write_text(path, load_template(name).render(page=page, pictures=pictures))
