"""The page of a data check: what was found, with the images it is about, in one file that needs nothing beside it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paucal.report.page import template
from paucal.runs import write_text


@dataclass(frozen=True)
class Thumb:
    """A small picture of an image.

    Attributes:
        key: of the image.
        words: its class and part, or what is said of it.
        jpeg: bytes of the picture; None where the image cannot be read.
    """

    key: str
    words: str
    jpeg: bytes | None

    @property
    def uri(self) -> str | None:
        """The picture as it lies within the page."""
        return None if self.jpeg is None else _uri(self.jpeg)


@dataclass(frozen=True)
class Section:
    """One finding.

    Attributes:
        title: its kind.
        level: "misleads", "warning" or "note".
        text: what was found.
        advice: what to do.
        rows: the images, those that belong together in one row.
        more: a sentence about those that are not shown.
    """

    title: str
    level: str
    text: str
    advice: str
    rows: Sequence[Sequence[Thumb]]
    more: str = ""


def write_page(
    path: Path,
    *,
    title: str,
    figures: Sequence[tuple[str, str]],
    facts: Sequence[tuple[str, str]],
    per_class: Mapping[str, Mapping[str, int]],
    sections: Sequence[Section],
    sheet: bytes,
) -> None:
    """Write the page; pictures are inside, nothing is loaded from anywhere, and no script runs.

    Args:
        path: of the file.
        title: heading.
        figures: (number, meaning) of the headline.
        facts: (heading, value) of the table.
        per_class: images by part and class.
        sections: the findings.
        sheet: JPEG of a few images of every class.
    """
    names = list(next(iter(per_class.values()), {}))
    counts = {name: [per_class[part][name] for part in per_class] for name in names}
    content = template("checking.html").render(
        title=title,
        figures=figures,
        facts=facts,
        parts=list(per_class),
        counts=counts,
        sections=sections,
        sheet=_uri(sheet),
    )
    write_text(path, content)


def _uri(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
