"""The result of `paucal check` as a Python object, JSON, terminal output and an HTML page."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.table import Table

from paucal.data.checking.findings import CheckedSet, Finding, class_counts_by_split, has_misleading
from paucal.data.checking.survey import Survey
from paucal.data.images import ImageSet
from paucal.report.page import write_page
from paucal.report.pictures import data_uri
from paucal.runner.console import Console
from paucal.runner.sheets import MAX_COLUMNS, MAX_ROWS, SheetStyle, draw_sheet, read_tile
from paucal.types import UserError
from paucal.verbs.check.labels import SuspectLabel
from paucal.wording import counted, percent
from paucal.writing import write_atomically, write_text

MAX_CLASSES, MAX_LISTED = 20, 10  # largest numbers of classes and of suspected labels on the terminal
LEVEL_MARKUP = {"misleads": "[bold red]misleads[/]", "warning": "[yellow]warning[/]", "note": "[dim]note[/]"}
PAGE, VALUES, SHEET = "check.html", "check.json", "contact_sheet.png"  # files of a check: page, values, sheet of images
MAX_THUMBS, MAX_GROUP = 60, 6  # largest numbers of thumbnails: per finding, and per group of images
TILE_SIDE = 88  # side of a thumbnail in pixels
_JPEG_QUALITY = 82  # quality of a JPEG file, from 0 to 95


@dataclass(frozen=True)
class Section:
    """The section of the page about one finding; images that belong together share a row of thumbnails."""

    title: str
    level: str
    text: str
    advice: str
    rows: Sequence[Sequence[dict[str, str | None]]]
    omitted: int  # number of rows that are not shown


@dataclass(frozen=True)
class CheckResult:
    """Result of a check.

    Attributes:
        checked: Set of images, and its split into train, val and test.
        facts: Description of the set: counts, sizes, channels and brightness, as JSON values.
        findings: Problems and notes, the most serious first.
        suspects: Labels that are probably wrong, the most suspect first; None if labels were not checked.
        judged_by: Text that describes the features and classifiers with which labels were checked, and how many labels
            agree with the predictions; "" if labels were not checked.
        folder: Folder of the HTML page; None if no page was written.
        said: Lines that the command line prints in addition to its tables.
    """

    checked: CheckedSet
    facts: dict[str, Any]
    findings: Sequence[Finding]
    suspects: Sequence[SuspectLabel] | None = None
    judged_by: str = ""
    folder: Path | None = None
    said: tuple[str, ...] = field(default=())

    @property
    def misleads(self) -> bool:
        """Whether training on these images would give misleading scores, or could not start."""
        return has_misleading(self.findings)

    def of(self, name: str) -> Finding | None:
        """Return the finding called `name`, such as "duplicates-across-parts"; None if there is no such finding."""
        return next((finding for finding in self.findings if finding.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        images = self.checked.images
        suspects = None if self.suspects is None else [suspect.to_dict(images) for suspect in self.suspects]
        return {
            "misleads": self.misleads,
            **self.facts,
            "findings": [finding.to_dict(images.keys) for finding in self.findings],
            "suspected_labels": suspects,
            "judged_by": self.judged_by,
        }


def describe_set(checked: CheckedSet, survey: Survey) -> dict[str, Any]:
    """Return a description of a set as JSON values; see `CheckResult.facts`."""
    images, readable = checked.images, survey.readable_positions
    parts = Counter(checked.parts.tolist())
    return {
        "name": images.name,
        "location": images.location,
        "images": len(images),
        "readable": len(readable),
        "classes": len(images.classes),
        "parts": {part: parts[part] for part in ("train", "val", "test") if parts[part]},
        "parts_are": "the data's own" if checked.has_declared_splits else checked.origin,
        "per_class": class_counts_by_split(images, checked.parts) if images.classes else {},
        "sizes": _summarise_sizes(survey.sizes[readable]),
        "channels": dict(Counter(mode for mode in survey.modes if mode).most_common()),
        "brightness": _summarise_spread(survey.brightness[readable]),
        "contrast": _summarise_spread(survey.contrast[readable]),
    }


def print_result(result: CheckResult, console: Console) -> None:
    """Print the result of a check on the terminal."""
    facts, keys = result.facts, result.checked.images.keys
    counts = f"{counted(facts['images'], 'image')}, {counted(facts['classes'], 'class', 'classes')}"
    console.say(f"{facts['name']}: {counts}")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for row in fact_rows(facts):
        table.add_row(*row)
    console.show(table)
    if facts["per_class"]:
        console.show(_class_table(facts["per_class"]))
    if not result.findings:
        console.say("no problems found.")
    for finding in result.findings:
        advice = f" -> {finding.advice}" if finding.advice else ""
        console.terminal.print(f"{LEVEL_MARKUP[finding.level]}  ", end="")
        console.say(f"{finding.text}{advice}")
        groups = finding.groups[:3] if finding.level != "note" else ()
        for group in groups:
            members = [f"{keys[position]} [{result.checked.parts[position]}]" for position in group[:3]]
            console.say(f"            {' = '.join(members)}{' = ...' if len(group) > 3 else ''}")
        if groups and len(finding.groups) > len(groups):
            console.say(f"            and {len(finding.groups) - len(groups)} more")
    if result.suspects is None:
        return
    console.say(f"labels checked with {result.judged_by}")
    console.say(f"{counted(len(result.suspects), 'label')} probably wrong, the most suspect first:")
    for suspect in result.suspects[:MAX_LISTED]:
        console.say(
            f"            {keys[suspect.position]}: '{suspect.given}' ({percent(suspect.confidence)}), "
            f"probably '{suspect.suggested}' ({percent(suspect.suggested_confidence)})"
        )
    if len(result.suspects) > MAX_LISTED:
        console.say(f"            and {len(result.suspects) - MAX_LISTED} more (--output FOLDER shows all of these)")


def fact_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the description of a set as (heading, value) rows."""
    parts = ", ".join(f"{name} {count}" for name, count in facts["parts"].items())
    rows = [("parts", f"{parts} ({facts['parts_are']})")]
    if sizes := facts["sizes"]:
        low, middle, high = (f"{w} x {h}" for h, w in (sizes["smallest"], sizes["median"], sizes["largest"]))
        text = f"medians {middle}, images from {low} to {high}; {sizes['different']} different"
        rows.append(("width x height", text))
    kinds = ", ".join(f"{mode}: {count}" for mode, count in facts["channels"].items())
    rows += [("channels", kinds)] if kinds else []
    for name in ("brightness", "contrast"):
        if spread := facts[name]:
            text = f"{spread['mean']:.2f} on average, from {spread['low']:.2f} to {spread['high']:.2f} (of 1)"
            rows.append((name, text))
    return rows


def _class_table(per_class: dict[str, dict[str, int]]) -> Table:
    table = Table("class", box=None, padding=(0, 2, 0, 0))
    table.columns[0].overflow = "fold"
    for part in per_class:
        table.add_column(part, justify="right")
    names = list(next(iter(per_class.values())))
    for name in names[:MAX_CLASSES]:
        table.add_row(name, *(str(counts[name]) for counts in per_class.values()))
    if len(names) > MAX_CLASSES:
        table.add_row(f"and {len(names) - MAX_CLASSES} more")
    return table


def _summarise_sizes(sizes: np.ndarray) -> dict[str, Any]:
    if not len(sizes):
        return {}
    areas = sizes.prod(axis=1)
    order = np.argsort(areas, kind="stable")
    return {
        "smallest": sizes[order[0]].tolist(),
        "median": np.median(sizes, axis=0).astype(np.int64).tolist(),  # median height and median width
        "largest": sizes[order[-1]].tolist(),
        "different": len(np.unique(sizes, axis=0)),
        "median_short_side": int(np.median(sizes.min(axis=1))),
    }


def _summarise_spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    low, high = np.quantile(values, (0.01, 0.99))
    return {"mean": round(float(values.mean()), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def refuse_foreign_files(folder: Path) -> None:
    """Refuse a folder in which the check would replace files that `paucal check` has not written."""
    existing = [name for name in (PAGE, VALUES, SHEET) if (folder / name).exists()]
    if existing and not (folder / VALUES).is_file():
        text = f"--output: {str(folder / existing[0])!r} was not written by 'paucal check' and would be overwritten"
        raise UserError(f"{text}: give another folder.")


def write_check(folder: Path, result: CheckResult, seed: int) -> None:
    """Write all files of a check; the folder is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(result.to_dict(), indent=2, ensure_ascii=False)
    write_text(folder / VALUES, content + "\n")
    sheet = contact_sheet(result.checked.images, seed)
    write_atomically(folder / SHEET, lambda file: sheet.save(file, "PNG"))
    facts, per_class = result.facts, result.facts["per_class"]
    names = next(iter(per_class.values()), {})
    levels = Counter(finding.level for finding in result.findings)
    headline = {
        "images": f"{facts['images']:,}",
        "classes": facts["classes"],
        "findings that mislead": levels["misleads"],
        "warning" if levels["warning"] == 1 else "warnings": levels["warning"],
    }
    if result.suspects is not None:
        headline["labels probably wrong"] = len(result.suspects)
    write_page(
        folder / PAGE,
        "checking.html",
        title=f"Data check of {facts['name']}",
        figures=[(str(number), noun) for noun, number in headline.items()],
        facts=fact_rows(facts),
        parts=list(per_class),
        counts={name: [counts[name] for counts in per_class.values()] for name in names},
        sections=_make_sections(result),
        sheet=_jpeg_uri(sheet),
    )


def _make_sections(result: CheckResult) -> list[Section]:
    """Return a section for each finding, and a section for the suspected labels if labels were checked."""
    sections = []
    for finding in result.findings:
        rows: list[list[dict[str, str | None]]] = []
        for group in finding.groups:
            if sum(map(len, rows)) >= MAX_THUMBS:
                break
            rows.append([_make_thumb(result, position) for position in group[:MAX_GROUP]])
        title, omitted = finding.name.replace("-", " "), len(finding.groups) - len(rows)
        sections.append(Section(title, finding.level, finding.text, finding.advice, rows, omitted))
    if result.suspects is None:
        return sections
    rows = []
    for suspect in result.suspects[:MAX_THUMBS]:
        caption = f"labelled {suspect.given} ({percent(suspect.confidence, '.0f')}), probably {suspect.suggested} "
        caption += f"({percent(suspect.suggested_confidence, '.0f')})"
        rows.append([_make_thumb(result, suspect.position, caption)])
    text = f"{counted(len(result.suspects), 'label')}, the most suspect first. Checked with {result.judged_by}."
    advice = "Look at each image: correct wrong labels, and keep unusual images with the right label."
    level, omitted = "warning" if rows else "note", len(result.suspects) - len(rows)
    return [*sections, Section("labels that are probably wrong", level, text, advice, rows, omitted)]


def _make_thumb(result: CheckResult, position: int, caption: str | None = None) -> dict[str, str | None]:
    """Return an image for the page: its key, the text below it, and its data URI (None if it cannot be read)."""
    images = result.checked.images
    name = ", ".join(images.classes_of(position))
    label = caption or ", ".join(part for part in (name, str(result.checked.parts[position])) if part)
    picture = read_tile(images.store.read, position, TILE_SIDE)
    uri = None if picture is None else _jpeg_uri(picture)
    return {"key": images.keys[position], "words": label, "uri": uri}


def _jpeg_uri(picture: Image.Image) -> str:
    """Return an image as the data URI of a JPEG file."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return data_uri(buffer.getvalue(), "jpeg")


def contact_sheet(images: ImageSet, seed: int) -> Image.Image:
    """Draw a row of random images for each of the first `MAX_ROWS` classes, or six rows if images are unlabelled."""
    generator = np.random.default_rng(seed)
    rows: list[tuple[str, list[int]]] = []
    if images.classes:
        for label, name in enumerate(images.classes[:MAX_ROWS]):
            members = images.positions_of_class(label)
            sample = np.sort(generator.permutation(members)[:MAX_COLUMNS])
            rows.append((f"{name} ({len(members)})", sample.tolist()))
    else:
        sampled = np.sort(generator.permutation(len(images))[: 6 * MAX_COLUMNS]).tolist()
        rows = [("", sampled[start : start + MAX_COLUMNS]) for start in range(0, len(sampled), MAX_COLUMNS)]
    titled_rows = [
        (name.encode("ascii", "replace").decode()[:120], [(position, "") for position in members])
        for name, members in rows
    ]
    return draw_sheet(titled_rows, images.store.read, SheetStyle(TILE_SIDE, 4, 16 if images.classes else 0))
