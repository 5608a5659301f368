"""Check before any work is done that results can be written to a writable, unused path outside the images."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from paucal.data.named.table import is_published_set
from paucal.data.sources.joining import split_location
from paucal.data.sources.opening import BUILT_IN
from paucal.evaluation.results import read_report
from paucal.reading import expand_user_path
from paucal.runner.console import Console
from paucal.runs import RunFolder, create_run
from paucal.runs.folder import RUNS_FOLDER, is_nonempty
from paucal.runs.replacing import aside_path, finish_replacement, require_replaceable
from paucal.runs.writable import check_file_writable, check_folder_writable
from paucal.settings.options import flag
from paucal.settings.shared import JobSettings
from paucal.types import UserError

S = TypeVar("S", bound=JobSettings)


def resolve_output(settings: S, reads: Iterable[str], console: Console) -> S:
    """Check the output folder of a run before any work is done, and return the settings with its absolute path.

    If an interrupted command moved the previous run to another path, that run is moved back first.
    """
    read_paths = {flag(name): str(value) for name in reads if (value := getattr(settings, name)) is not None}
    for name, value in read_paths.items():
        expand_user_path(value, name)  # raises for an empty path
    images = {name: value for name, value in read_paths.items() if name in ("--data", "--monitor", "--unlabelled")}
    if settings.output is None:
        refuse_inside_images(RUNS_FOLDER, images, settings.data_root)
        return settings
    path = expand_user_path(str(settings.output))
    refuse_inside_images(path, images, settings.data_root)
    if finish_replacement(path):
        console.say(f"moved the previous run back from {aside_path(path)} to {path}, since a command was interrupted")
    if not _is_taken(path):
        check_folder_writable(path)
    elif not settings.overwrite:
        create_run(path)  # raises an error with advice
    else:
        require_replaceable(path)
        check_folder_writable(path)
        check_folder_writable(aside_path(path))
        for name, value in read_paths.items():
            if value != BUILT_IN and _resolve_links(expand_user_path(value, name)).is_relative_to(_resolve_links(path)):
                raise UserError(
                    f"{name}: {value!r} is inside the run folder, which --overwrite would remove: choose another "
                    "--output."
                )
    return replace(settings, output=str(path))


def output_path(output: str | None, default: Path) -> Path:
    """Return the path that `--output` names, or `default` if there is no `--output`."""
    return default if output is None else expand_user_path(output)


def refuse_inside_images(
    path: Path, images: Mapping[str, str | None], root: str | None = None, flag: str = "--output"
) -> None:
    """Refuse results inside a folder of images, where they would later be read as images or as a class.

    `images` maps flags to locations of images; `flag` is the flag with which the path of the results was given.
    """
    for name, location in images.items():
        if location is None or location == BUILT_IN or is_published_set(location, root):
            continue
        for folder in (expand_user_path(path_text, name) for path_text in split_location(location)):
            if folder.is_dir() and _resolve_links(path).is_relative_to(_resolve_links(folder)):
                raise UserError(
                    f"{flag}: {str(path)!r} is inside the images of {str(folder)!r}, where it would be read as an "
                    f"image or a class: choose another {flag}."
                )


def check_results(
    folder: Path, images: Mapping[str, str | None], root: str | None = None, extra_files: Sequence[str] = ()
) -> None:
    """Refuse a folder for results if it is not writable, or if results would replace files of another program.

    `images` maps flags to locations of images; `extra_files` are names of further files that this evaluation writes.
    """
    refuse_inside_images(folder, images, root)
    check_folder_writable(folder)
    for main_files, other_files in RESULT_FILES:
        names = (*main_files, *other_files, *(extra_files if main_files == SCORE_FILES else ()))
        existing = [name for name in names if os.path.lexists(folder / name)]
        main_existing = [name for name in main_files if name in existing]
        foreign_files = [name for name in main_existing if not _is_result_file(RunFolder(folder), name)]
        if foreign_files or (existing and not main_existing):
            raise UserError(
                f"--output: {str(folder / (foreign_files or existing)[0])!r} would be replaced, but was not written by "
                "an evaluation with paucal: choose another folder."
            )


def check_new_file(text: str, images: Mapping[str, str | None], root: str | None, flag: str) -> Path:
    """Return the path of an image to write; refuse a path that exists, is not writable, or is inside the images."""
    path = expand_user_path(text, flag)
    refuse_inside_images(path, images, root, flag)
    check_file_writable(path, flag)
    return path


# Main files of an evaluation of one run
SCORE_FILES = ("metrics.json", "segmentation.json")
# Names of the files that evaluations write, as (main files, other files); a main file identifies a folder of results.
RESULT_FILES = (
    (
        SCORE_FILES,
        (
            *("per_class.csv", "per_image.csv", "predictions.csv", "real_labels.json", "detections.json"),
            *("confusion.png", "per_class.png", "precision_recall.png", "mask_precision_recall.png"),
            *("reliability.png", "mistakes.png", "mistakes_attribution.png"),
        ),
    ),
    (("results.json",), ("table.csv",)),
)
# Keys that identify a main file; `read_report` also recognises older formats of metrics.json.
REQUIRED_KEYS = {
    "metrics.json": {"images", "scores", "intervals", "per_class"},
    "segmentation.json": {"images", "mean_iou", "confusion"},
    "results.json": {"tallies", "rows"},
}


def _is_result_file(folder: RunFolder, name: str) -> bool:
    try:
        content = folder.read_json(name)
        if name == "metrics.json" and not REQUIRED_KEYS[name] <= set(content):
            if content.get("kind") != "regression":
                read_report(content)
            return True
        return REQUIRED_KEYS[name] <= set(content)
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _resolve_links(path: Path) -> Path:
    """Resolve all links; unlike `Path.resolve`, keep a link that points to itself."""
    return Path(os.path.realpath(path))


def _is_taken(path: Path) -> bool:
    try:
        return is_nonempty(path)
    except (OSError, ValueError):  # `check_folder_writable` reports long names and unreadable folders
        return False


def check_new_folder(
    text: str, images: Mapping[str, str | None], root: str | None = None, flag: str = "--output"
) -> Path:
    """Return the path of a folder to fill; refuse a folder that is not empty, not writable, or inside the images."""
    path = expand_user_path(text, flag)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{flag}: {str(path)!r} is not empty: give a new or an empty folder.")
    refuse_inside_images(path, images, root, flag)
    check_folder_writable(path, flag)
    return path
