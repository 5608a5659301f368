"""Replace a run: the old run is set aside until the new run has saved a state.

`runs/1` is moved to `runs/1.replaced`, with a note inside. If the new run ends before it has saved
anything, the old one is moved back at once, or by the next call after a kill.
"""

import re
import shutil
from pathlib import Path

from paucal.runs.folder import ASIDE, FRAME, MARKER, RunFolder, is_taken
from paucal.runs.ledger import FOLDER as LEDGER
from paucal.runs.lock import LOCK, names_holder, require_unlocked
from paucal.types import UserError

NOTE = "replaced.txt"
# Files that runs write; any other file in their folder is the user's.
FILES = {
    *(
        MARKER,
        LOCK,
        NOTE,
        "env.json",
        "check.json",
        "split.csv",
        "init.json",
        "monitor.json",
        "train.log",
        "metrics.csv",
    ),
    *("summary.json", "report.html", "model.json", "model.safetensors", "checkpoints", "plots", "evaluation"),
    *("check.json", "rungs.json", "time_plan.json", "probe.safetensors", "trials"),
    LEDGER,
    *("unlabelled.csv", "unlabelled.safetensors", "held_out.safetensors", "learning_curve.json"),
    *("loggers.json", "tensorboard", "mlflow.db", "mlartifacts", "wandb"),
}
NUMBERED = re.compile(r"head-\d+(x\d+)?\.safetensors")
TEMPORARY = re.compile(r"\..+\.tmp")


def aside_of(path: Path) -> Path:
    """Return the folder of a replaced run that is kept aside."""
    return path.with_name(path.name + ASIDE)


def require_replaceable(path: Path) -> None:
    """Refuse to replace a folder that is in use or holds files other than those of a run."""
    if path.is_symlink():
        raise UserError(f"--overwrite: {str(path)!r} is a link to {str(path.readlink())!r}: name the run itself.")
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError(
            f"--overwrite: {str(path)!r} is the folder that you are in, or one above it: go to another folder and name "
            "the run from there."
        )
    if not is_run(path):
        raise UserError(
            f"--overwrite replaces run folders only, and {str(path)!r} is not the folder of a run: "
            "choose another --output, or remove it yourself."
        )
    if foreign := sorted(_foreign_names(path)):
        raise UserError(
            f"--overwrite would remove {foreign[0]!r} in {str(path)!r}, which no run has written: move it elsewhere, "
            "or choose another --output."
        )
    if aside_of(path).exists():  # `settle` would have moved a replaced run back
        raise UserError(
            f"--overwrite: {str(aside_of(path))!r} exists, and the old run would be moved there: rename it."
        )
    require_unlocked(path)


def is_run(path: Path) -> bool:
    """Return whether a folder is a run: it has settings with origins and a version of paucal.

    A run that was killed during its creation has only a lock, or no file at all.
    """
    run = RunFolder(path)
    if not (path / "checkpoints").is_dir():
        return False
    if not run.config.exists() or not (path / "env.json").exists():
        is_empty = not any(entry.is_file() for entry in path.rglob("*"))
        return (names_holder(path) or is_empty) and not _foreign_names(path)
    try:
        config, environment = run.read_yaml(MARKER), run.read_json("env.json")
    except (UserError, OSError):
        return False
    settings, origin = config.get("settings"), config.get("origin")
    if (
        not isinstance(settings, dict)
        or not isinstance(origin, dict)
        or not {"data", "seed", "output"} <= set(settings)
    ):
        return False
    packages = environment.get("packages")
    return isinstance(packages, dict) and "paucal" in packages


def set_aside(path: Path) -> Path:
    """Move a run aside, and return its new folder."""
    aside, note = aside_of(path), path / NOTE
    note.write_text(
        f"This run was in {path} and is about to be replaced by another ('paucal --overwrite').\n"
        "It is removed once that one has saved a state, and moved back if that one fails before.\n"
    )
    try:
        path.rename(aside)
    except OSError:
        note.unlink(missing_ok=True)
        raise
    return aside


def put_back(path: Path) -> None:
    """Move the run that was set aside back; the files of the new one are removed."""
    aside = aside_of(path)
    if path.exists():
        if foreign := sorted(_foreign_names(path)):
            raise UserError(
                f"{str(path)!r} holds {foreign[0]!r}, which no run has written, and the previous run is in "
                f"{str(aside)!r}: move one of the two elsewhere."
            )
        shutil.rmtree(path)
    aside.rename(path)
    (path / NOTE).unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Remove the run that was set aside, since the new one has saved a state."""
    shutil.rmtree(aside_of(path), ignore_errors=True)


def was_set_aside(path: Path) -> bool:
    """Return whether a replaced run is kept aside."""
    try:
        return bool(path.name) and (aside_of(path) / NOTE).is_file()
    except OSError:  # the name is too long
        return False


def settle(path: Path) -> bool:
    """Clean up after a replacement that was killed; return whether the old run was moved back.

    A new run that is still being written raises a UserError.
    """
    if not was_set_aside(path):
        return False
    if is_taken(path):
        require_unlocked(path)
    if RunFolder(path).last.exists():
        discard(path)
        return False
    put_back(path)
    return True


def sweep(path: Path) -> None:
    """Remove incomplete files of a killed process. The caller must hold the lock of the run."""
    for folder in (path, *(entry for entry in path.rglob("*") if entry.is_dir() and not entry.is_symlink())):
        for file in folder.iterdir():
            if TEMPORARY.fullmatch(file.name) and file.is_file():
                file.unlink(missing_ok=True)


def _foreign_names(path: Path) -> set[str]:
    names = {entry.name for entry in path.iterdir()} - FILES
    return {name for name in names if not any(pattern.fullmatch(name) for pattern in (TEMPORARY, NUMBERED, FRAME))}
