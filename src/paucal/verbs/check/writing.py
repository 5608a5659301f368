"""Files of a check: the page with thumbnails, the JSON and the contact sheet."""

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, Store
from paucal.report.checking import Section, Thumb, write_page
from paucal.runs import write_atomically, write_text
from paucal.types import UserError
from paucal.verbs.check.result import CheckResult, fact_rows
from paucal.wording import counted, percent

PAGE, VALUES, SHEET = "check.html", "check.json", "contact_sheet.png"
MOST_THUMBS, MOST_GROUP = 60, 6  # thumbnails of a finding, and of one group of images
TILE, COLUMNS, MOST_ROWS = 88, 10, 60  # pixels of a thumbnail, and thumbnails and rows of the sheet
_GAP, _NAME = 4, 16
_QUALITY = 82


def require_ours(folder: Path) -> None:
    """Refuse a folder in which files that are not of a check would be replaced.

    Raises:
        UserError: It has a page but no JSON of a check, or something of these names is not a file.
    """
    there = [name for name in (PAGE, VALUES, SHEET) if (folder / name).exists()]
    if there and not (folder / VALUES).is_file():
        raise UserError(
            f"--output: {str(folder / there[0])!r} would be replaced, and no check of paucal has written it: give "
            "another folder."
        )


def write_check(folder: Path, result: CheckResult, seed: int) -> None:
    """Write all files of a check; the folder is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(result.to_dict(), indent=2, ensure_ascii=False)
    write_text(folder / VALUES, content + "\n")
    sheet = contact_sheet(result.checked.images, seed)
    write_atomically(folder / SHEET, lambda file: sheet.save(file, "PNG"))
    facts = result.facts
    write_page(
        folder / PAGE,
        title=f"Data check of {facts['name']}",
        figures=_figures(result),
        facts=fact_rows(facts),
        per_class=facts["per_class"],
        sections=[*_findings(result), *_suspects(result)],
        sheet=as_jpeg(sheet),
    )


def _figures(result: CheckResult) -> list[tuple[str, str]]:
    facts = result.facts
    found = [(f"{facts['images']:,}", "images"), (str(facts["classes"]), "classes")]
    levels = [one.level for one in result.findings]
    found.append((str(levels.count("misleads")), "findings that mislead"))
    found.append((str(levels.count("warning")), "warnings" if levels.count("warning") != 1 else "warning"))
    if result.suspects is not None:
        found.append((str(len(result.suspects)), "labels probably wrong"))
    return found


def _findings(result: CheckResult) -> list[Section]:
    sections = []
    for finding in result.findings:
        rows, shown = [], 0
        for group in finding.groups:
            if shown >= MOST_THUMBS:
                break
            some = group[:MOST_GROUP]
            rows.append([_thumb(result, position) for position in some])
            shown += len(some)
        more = len(finding.groups) - len(rows)
        left = f"and {more} more; {VALUES} has all of them" if more > 0 else ""
        title = finding.name.replace("-", " ")
        sections.append(Section(title, finding.level, finding.text, finding.advice, rows, left))
    return sections


def _suspects(result: CheckResult) -> list[Section]:
    if result.suspects is None:
        return []
    rows = []
    for one in result.suspects[:MOST_THUMBS]:
        said = f"labelled {one.given} ({percent(one.confidence, '.0f')}), rather {one.suggested} "
        rows.append([_thumb(result, one.position, f"{said}({percent(one.suggested_confidence, '.0f')})")])
    more = len(result.suspects) - len(rows)
    return [
        Section(
            "labels that are probably wrong",
            "warning" if rows else "note",
            f"{counted(len(result.suspects), 'label')}, the most suspect first. Judged by {result.judged_by}.",
            "Look at each: an unusual image with the right label is worth more than most. Correct what is wrong.",
            rows,
            f"and {more} more; {VALUES} has all of them" if more > 0 else "",
        )
    ]


def _thumb(result: CheckResult, position: int, caption: str | None = None) -> Thumb:
    images = result.checked.images
    name = ", ".join(images.classes_of(position))
    words = caption or ", ".join(word for word in (name, str(result.checked.parts[position])) if word)
    picture = thumbnail(images.store, position)
    return Thumb(images.keys[position], words, None if picture is None else as_jpeg(picture))


def thumbnail(store: Store, position: int, side: int = TILE) -> Image.Image | None:
    """Return an image within a square, with its own shape on white; None if it cannot be read."""
    try:
        picture = store.read(position)
    except UnreadableImage:
        return None
    enlarged = max(picture.size) < side
    way = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    return ImageOps.pad(picture, (side, side), way, color="white")


def as_jpeg(picture: Image.Image) -> bytes:
    """Return the bytes of a JPEG."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def contact_sheet(images: ImageSet, seed: int = 0) -> Image.Image:
    """Draw ten random images of each of the first sixty classes, a row each; of an unlabelled set sixty images."""
    generator = np.random.default_rng(seed)
    rows: list[tuple[str, list[int]]] = []
    if images.classes:
        for label, name in enumerate(images.classes[:MOST_ROWS]):
            members = images.members(label)
            chosen = np.sort(generator.permutation(members)[:COLUMNS])
            rows.append((f"{name} ({len(members)})", chosen.tolist()))
    else:
        some = np.sort(generator.permutation(len(images))[: 6 * COLUMNS]).tolist()
        rows = [("", some[begin : begin + COLUMNS]) for begin in range(0, len(some), COLUMNS)]
    height = TILE + _GAP + (_NAME if images.classes else 0)
    page = Image.new("RGB", (COLUMNS * (TILE + _GAP) + _GAP, len(rows) * height + _GAP), "white")
    draw = ImageDraw.Draw(page)
    for number, (name, members) in enumerate(rows):
        top = _GAP + number * height
        if images.classes:
            draw.text((_GAP, top), name.encode("ascii", "replace").decode()[:120], fill="black")
            top += _NAME
        for column, position in enumerate(members):
            tile = thumbnail(images.store, position)
            if tile is not None:
                page.paste(tile, (_GAP + column * (TILE + _GAP), top))
    return page
