"""Checks before a study starts: settings that do not apply, and folders with other content."""

from collections.abc import Mapping
from pathlib import Path

from paucal.reading import named_path
from paucal.runner.outputs import DEFAULT, refuse_inside_images
from paucal.runs.files import try_folder
from paucal.studies.drawing import PICTURE
from paucal.studies.grids.scenes import UNFINISHED
from paucal.studies.images import TAKEN
from paucal.studies.settings import StudySettings
from paucal.studies.study import Study
from paucal.studies.tables import RESULTS
from paucal.types import UserError

PAGE = "study.html"
FULL_ONLY = ("recipe", "init", "labels")


def require_run(found: Study) -> None:
    """Raise a UserError for a study that trains nothing."""
    if found.trains:
        return
    shown = f"'paucal study show {found.name}' prints what is published of it"
    if found.kind == "facts":
        raise UserError(f"{found.name} is a reference table; there is nothing to run: {shown}.")
    raise UserError(f"{found.name} is not run, but made by hand: {found.see}; {shown}.")


def require_sense(found: Study, asked: StudySettings) -> None:
    """Raise a UserError for settings that do not apply to this scale or study."""
    given = [name for name in FULL_ONLY if getattr(asked, name) is not None]
    if given and asked.scale != "full":
        raise UserError(f"--{given[0]} belongs to --scale full: leave it out at {asked.scale}.")
    if asked.init is not None and len(asked.init) > 1 and not found.starts:
        raise UserError(f"--init: all runs of {found.name} start from the same weights: give one.")
    if found.kind in ("detect", "segment") and (asked.data_root is not None or asked.download):
        name = "data-root" if asked.data_root is not None else "download"
        raise UserError(f"--{name} finds sets by name, and boxes and masks are read from folders: leave it out.")
    if asked.recipe is not None and found.kind != "train":
        raise UserError("--recipe is for studies that train with labels: leave it out.")


def study_folder(found: Study, asked: StudySettings, places: Mapping[str, str]) -> Path:
    """Return the folder of a study, which may not exist yet.

    Raises:
        UserError: The folder holds something else, is inside the images, or is not writable.
    """
    usual = f"study-{found.name}-{asked.scale}" if found.trains else f"study-{found.name}"
    folder = DEFAULT / usual if asked.output is None else named_path(asked.output)
    for place in places.values():
        refuse_inside_images(folder, {"DATA": place}, asked.data_root)
    try_folder(folder)
    known = (PAGE, RESULTS, PICTURE, *TAKEN, *places)
    if folder.is_dir():
        names = [one.name for one in folder.iterdir() if not (one / "grid.json").is_file()]
        others = [name for name in names if name not in known and not name.startswith(UNFINISHED)]
        if others:
            raise UserError(
                f"--output: {str(folder)!r} holds {others[0]!r}, which is not part of a study: choose another folder."
            )
        if asked.scale != "full":
            _require_same_images(folder, places)
    return folder


def _require_same_images(folder: Path, places: Mapping[str, str]) -> None:
    """Refuse images that differ from those in the folder: the page shows the numbers of one data set."""
    others = [one.parent.name for one in folder.glob("*/grid.json") if one.parent.name not in (*TAKEN, *places)]
    if others:
        raise UserError(
            f"--output: {str(folder)!r} holds the study on {others[0]!r}, and these images are {', '.join(places)}: "
            "choose another folder."
        )
