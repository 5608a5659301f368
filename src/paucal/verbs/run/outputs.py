"""Where results go: a place that can be written, is nobody else's, and lies apart from the images."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from paucal.data.named.locations import is_named
from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.data.sources.opening import BUILT_IN
from paucal.data.sources.several import roots_of
from paucal.evaluation.results import read_report
from paucal.reading import named_path
from paucal.runs import RunFolder, create_run
from paucal.runs.folder import is_taken
from paucal.runs.replacing import aside_of, require_replaceable, settle
from paucal.runs.writable import try_file, try_folder
from paucal.settings.groups import JobSettings
from paucal.settings.options import flag
from paucal.types import UserError
from paucal.verbs.run.voice import Voice

S = TypeVar("S", bound=JobSettings)
DEFAULT = Path("runs")
TableForm = Literal["csv", "json"]
FORMS: dict[str, TableForm] = {".csv": "csv", ".json": "json"}
OTHER_FORMS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers"), "a spreadsheet"),
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".orc", ".avro"), "a file of columns"),
    **dict.fromkeys((".tsv", ".tab"), "a table with tabs"),
    **dict.fromkeys((".jsonl", ".ndjson"), "lines of JSON"),
    **dict.fromkeys((".yaml", ".yml", ".toml", ".xml"), "another format"),
    **dict.fromkeys((".html", ".htm", ".md", ".tex", ".pdf", ".doc", ".docx", ".rtf"), "a document"),
    **dict.fromkeys((".npy", ".npz", ".mat", ".h5", ".hdf5", ".pkl", ".pickle", ".pt", ".pth"), "arrays or objects"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".duckdb"), "a database"),
    **dict.fromkeys((".zip", ".gz", ".bz2", ".xz", ".zst", ".tar", ".7z"), "an archive"),
    **dict.fromkeys(IMAGE_SUFFIXES, "an image"),
}


def settle_output(settings: S, reads: Iterable[str], voice: Voice) -> S:
    """Refuse a place for a run that will not do before any work is done, and return the settings with its full path.

    A run that a killed call has left aside is moved back first.

    Raises:
        UserError: the place cannot be written, lies among the images, or holds something that may not be replaced.
    """
    read = {flag(name): str(value) for name in reads if (value := getattr(settings, name)) is not None}
    for name, value in read.items():
        named_path(value, name)  # raises where it names nothing
    images = {name: value for name, value in read.items() if name in ("--data", "--monitor")}
    if settings.output is None:
        refuse_among(DEFAULT, images, settings.data_root)
        return settings
    path = named_path(str(settings.output))
    refuse_among(path, images, settings.data_root)
    if settle(path):
        voice.say(f"the run that a stopped call was to replace was in {aside_of(path)}, and is in {path} again")
    if not _taken(path):
        try_folder(path)
    elif not settings.overwrite:
        create_run(path)  # raises, with the advice that belongs to it
    else:
        require_replaceable(path)
        try_folder(path)
        try_folder(aside_of(path))
        _refuse_to_remove(path, read)
    return replace(settings, output=str(path))


def refuse_among(path: Path, images: Mapping[str, str | None], root: str | None = None, flag: str = "--output") -> None:
    """Refuse results within a folder of images, where the next look would take them for images or a class.

    Args:
        path: of a folder or file of results.
        images: by the flag that names them.
        root: of published sets.
        flag: that names the results.

    Raises:
        UserError: they lie within.
    """
    for name, location in images.items():
        if location is None or location == BUILT_IN or is_named(location, root):
            continue
        for folder in (named_path(one, name) for one in roots_of(location)):
            if folder.is_dir() and _real(path).is_relative_to(_real(folder)):
                raise UserError(
                    f"{flag}: {str(path)!r} lies within the images of {str(folder)!r}, where it would be taken for one "
                    f"of them or for a class: give {flag} another place."
                )


def check_results(
    folder: Path, images: Mapping[str, str | None], root: str | None = None, more: Sequence[str] = ()
) -> None:
    """Refuse a folder for the results of an evaluation that cannot be written or whose files are of others.

    Args:
        folder: of results.
        images: by the flag that names them.
        root: of published sets.
        more: names in the folder that are written to beside those of all evaluations.

    Raises:
        UserError: it will not do.
    """
    refuse_among(folder, images, root)
    try_folder(folder)
    for tellers, others in RESULTS:
        names = (*tellers, *others, *(more if tellers == SCORES else ()))
        there = [name for name in names if os.path.lexists(folder / name)]
        told = [name for name in tellers if name in there]
        strange = [name for name in told if not _is_result(RunFolder(folder), name)]
        if strange or (there and not told):
            raise UserError(
                f"--output: {str(folder / (strange or there)[0])!r} would be replaced, and no evaluation of paucal has "
                "written it: give another folder."
            )


def check_file(text: str, images: Mapping[str, str | None], root: str | None, flag: str) -> Path:
    """Return the path of a picture to write.

    Raises:
        UserError: it exists, cannot be written, or lies among images.
    """
    path = named_path(text, flag)
    refuse_among(path, images, root, flag)
    try_file(path, flag)
    return path


def check_table(text: str, form: TableForm | None = None) -> tuple[Path, TableForm]:
    """Return the path of a table to write, and its form.

    Args:
        text: Path as typed.
        form: Form that was asked for; None where the ending of the path decides, else CSV.

    Raises:
        UserError: The file exists, cannot be written, or its ending names another form.
    """
    path = named_path(text)
    ending = path.suffix.lower()
    if ending in OTHER_FORMS:
        raise UserError(
            f"--output: {text[:120]!r} is a name of {OTHER_FORMS[ending]}, and a table is written: end it in .csv or "
            ".json."
        )
    named = FORMS.get(ending)
    if form is not None and named not in (None, form):
        raise UserError(f"--output: {text[:120]!r} ends in {ending}, and --format is {form}: give one of the two.")
    if not path.parent.exists():
        raise UserError(f"there is no folder for {text[:120]!r}: make it, or choose another --output.")
    try_file(path)
    return path, form or named or "csv"


# What evaluations write: the files of which one tells that it was one of ours, and those beside them.
SCORES = ("metrics.json", "segmentation.json")
RESULTS = (
    (
        SCORES,
        (
            *("per_class.csv", "per_image.csv", "predictions.csv", "real_labels.json", "detections.json"),
            *("confusion.png", "per_class.png", "precision_recall.png", "mask_precision_recall.png"),
            *("reliability.png", "mistakes.png", "mistakes_attribution.png"),
        ),
    ),
    (("results.json",), ("table.csv",)),
)
# What they hold; the scores of a classifier have forms of several ages, which their reader knows.
ENTRIES = {
    "metrics.json": {"images", "scores", "intervals", "per_class"},
    "segmentation.json": {"images", "mean_iou", "confusion"},
    "results.json": {"tallies", "rows"},
}


def _is_result(folder: RunFolder, name: str) -> bool:
    try:
        content = folder.read_json(name)
        if name == "metrics.json" and not ENTRIES[name] <= set(content):
            read_report(content)
            return True
        return ENTRIES[name] <= set(content)
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _real(path: Path) -> Path:
    """Follow all links; one that leads to itself is left as it is, where `Path.resolve` raises."""
    return Path(os.path.realpath(path))


def _taken(path: Path) -> bool:
    try:
        return is_taken(path)
    except (OSError, ValueError):  # too long a name, a folder that may not be read: `try_folder` says so
        return False


def _refuse_to_remove(path: Path, read: Mapping[str, str]) -> None:
    for name, value in read.items():
        if value != BUILT_IN and _real(named_path(value, name)).is_relative_to(_real(path)):
            raise UserError(
                f"{name}: {value!r} lies in the run that --overwrite would remove: choose another --output."
            )
