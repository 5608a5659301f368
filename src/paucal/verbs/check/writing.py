"""The files of a check: the page, the JSON and the contact sheet."""

import json
from pathlib import Path

from paucal.data.checking.contact_sheet import as_jpeg, contact_sheet, thumbnail
from paucal.report.checking import Section, Thumb, write_page
from paucal.runs import write_atomically, write_text
from paucal.types import UserError
from paucal.verbs.check.result import CheckResult, fact_rows
from paucal.wording import counted, percent

PAGE, VALUES, SHEET = "check.html", "check.json", "contact_sheet.png"
MOST_THUMBS, MOST_GROUP = 60, 6  # of a finding, and of one group of images


def require_ours(folder: Path) -> None:
    """Refuse a folder in which files of others would be replaced.

    Raises:
        UserError: it has a page and no JSON of a check, or something of these names that is no file.
    """
    there = [name for name in (PAGE, VALUES, SHEET) if (folder / name).exists()]
    if there and not (folder / VALUES).is_file():
        raise UserError(
            f"--output: {str(folder / there[0])!r} would be replaced, and no check of paucal has written it: give "
            "another folder."
        )


def write_check(folder: Path, result: CheckResult, seed: int) -> None:
    """Write everything; the folder is made where it is missing."""
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


def _thumb(result: CheckResult, position: int, told: str | None = None) -> Thumb:
    images = result.checked.images
    name = ", ".join(images.classes_of(position))
    words = told or ", ".join(word for word in (name, str(result.checked.parts[position])) if word)
    picture = thumbnail(images.store, position)
    return Thumb(images.keys[position], words, None if picture is None else as_jpeg(picture))
