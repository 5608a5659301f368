"""Check before any work is done that results can be written to a writable, unused path outside the images."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from paucal.data.named.table import is_published_set
from paucal.data.sources.joining import split_location
from paucal.data.sources.opening import BUILT_IN
from paucal.evaluation.results import read_report
from paucal.reading import expand_user_path
from paucal.runner.writable import check_file_writable, check_folder_writable
from paucal.runs import RunFolder
from paucal.types import UserError

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


def output_path(output: str | None, default: Path) -> Path:
    """Return the path that `--output` names, or `default` if there is no `--output`."""
    return default if output is None else expand_user_path(output)


def refuse_inside_images(
    path: Path, images: Mapping[str, str | None], root: str | None = None, flag: str = "--output"
) -> None:
    """Refuse results inside a folder of images, where they would later be read as images or as a class.

    `images` maps flags to locations of images; `flag` is the flag of the results.
    """
    for name, location in images.items():
        if location is None or location == BUILT_IN or is_published_set(location, root):
            continue
        for folder in (expand_user_path(path_text, name) for path_text in split_location(location)):
            if folder.is_dir() and is_inside(path, folder):
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


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder, after following all links except those that point to themselves."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


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
