"""Replacement of a run: the old run is kept until the new run has saved its first checkpoint.

The old run in `runs/1` is moved to `runs/1.replaced`, with a note inside. If the new run ends before its first
checkpoint, the old run is moved back at once. If the new run was killed, the next command that uses the folder moves
the old run back.
"""

import re
import shutil
from pathlib import Path

from paucal.runs.folder import ASIDE_SUFFIX, CONFIG_FILE, FRAME_FILE, RunFolder, is_nonempty
from paucal.runs.ledger import LEDGER_FOLDER as LEDGER
from paucal.runs.lock import LOCK_FILE, has_holder, require_unlocked
from paucal.types import UserError

NOTE_FILE = "replaced.txt"
# Names of the files and folders that runs write. Any other file in a run folder belongs to the user.
RUN_FILES = {
    *(CONFIG_FILE, LOCK_FILE, NOTE_FILE, LEDGER),
    *("env.json", "check.json", "split.csv", "init.json", "monitor.json", "train.log", "metrics.csv"),
    *("summary.json", "report.html", "model.json", "model.safetensors", "checkpoints", "plots", "evaluation"),
    *("rungs.json", "time_plan.json", "probe.safetensors", "trials"),
    *("unlabelled.csv", "unlabelled.safetensors", "unlabelled-frozen.safetensors"),
    *("held_out.safetensors", "learning_curve.json"),
    *("loggers.json", "tensorboard", "mlflow.db", "mlartifacts", "wandb"),
}
# Heads that were fitted at other image sizes, such as head-96.safetensors.
HEAD_FILE = re.compile(r"head-\d+(x\d+)?\.safetensors")
TEMPORARY_FILE = re.compile(r"\..+\.tmp")


def aside_path(path: Path) -> Path:
    """Return the folder that the old run in `path` is moved to while the old run is being replaced."""
    return path.with_name(path.name + ASIDE_SUFFIX)


def require_replaceable(path: Path) -> None:
    """Raise a UserError if a folder is not a run, is in use, or contains files that do not belong to a run."""
    if path.is_symlink():
        raise UserError(f"--overwrite: {str(path)!r} is a link to {str(path.readlink())!r}: name the run itself.")
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError(
            f"--overwrite: {str(path)!r} is the working directory, or contains it: change to another directory "
            "and name the run from there."
        )
    if not is_run(path):
        raise UserError(
            f"--overwrite replaces only run folders, but {str(path)!r} is not a run folder: choose another --output, "
            "or remove the folder yourself."
        )
    if foreign := sorted(_foreign_names(path)):
        raise UserError(
            f"--overwrite would remove {foreign[0]!r} in {str(path)!r}, which is not part of a run: move this file or "
            "folder elsewhere, or choose another --output."
        )
    if aside_path(path).exists():  # not a replaced run, which `finish_replacement` would have moved back
        raise UserError(
            f"--overwrite: the old run would be moved to {str(aside_path(path))!r}, which already exists: rename that "
            "folder."
        )
    require_unlocked(path)


def is_run(path: Path) -> bool:
    """Return whether a folder is a run: its files contain settings, the origins of the settings, and paucal's version.

    A run that was killed while it was created has only a lock, or no file at all, and counts as a run too.
    """
    run = RunFolder(path)
    if not (path / "checkpoints").is_dir():
        return False
    if not run.config.exists() or not (path / "env.json").exists():
        is_empty = not any(entry.is_file() for entry in path.rglob("*"))
        return (has_holder(path) or is_empty) and not _foreign_names(path)
    try:
        config, environment = run.read_yaml(CONFIG_FILE), run.read_json("env.json")
    except (UserError, OSError):
        return False
    settings, origins = config.get("settings"), config.get("origin")
    if not (isinstance(settings, dict) and isinstance(origins, dict) and {"data", "seed", "output"} <= settings.keys()):
        return False
    packages = environment.get("packages")
    return isinstance(packages, dict) and "paucal" in packages


def move_aside(path: Path) -> Path:
    """Move a run that will be replaced to its `aside_path`, and return that path."""
    aside, note = aside_path(path), path / NOTE_FILE
    note.write_text(
        f"This run was in {path} and is being replaced by a new run (--overwrite).\n"
        "It is removed once the new run has saved a checkpoint, and moved back if the new run fails before that.\n"
    )
    try:
        path.rename(aside)
    except OSError:
        note.unlink(missing_ok=True)
        raise
    return aside


def restore_replaced_run(path: Path) -> None:
    """Move the old run back to `path`, and remove the files of the new run."""
    aside = aside_path(path)
    if path.exists():
        if foreign := sorted(_foreign_names(path)):
            raise UserError(
                f"{str(path)!r} contains {foreign[0]!r}, which is not part of a run, so the old run in {str(aside)!r} "
                "cannot be moved back: move that file or the old run elsewhere."
            )
        shutil.rmtree(path)
    aside.rename(path)
    (path / NOTE_FILE).unlink(missing_ok=True)


def discard_replaced_run(path: Path) -> None:
    """Remove the old run, since the new run in `path` has saved a checkpoint."""
    shutil.rmtree(aside_path(path), ignore_errors=True)


def has_set_aside_run(path: Path) -> bool:
    """Return whether an old run was moved from `path` to its `aside_path` and is still there."""
    try:
        return bool(path.name) and (aside_path(path) / NOTE_FILE).is_file()
    except OSError:  # the name is too long
        return False


def finish_replacement(path: Path) -> bool:
    """Clean up if a new run was killed while replacing an old run; return whether the old run was moved back.

    Raises:
        UserError: A process is still writing the new run.
    """
    if not has_set_aside_run(path):
        return False
    if is_nonempty(path):
        require_unlocked(path)
    if RunFolder(path).last.exists():
        discard_replaced_run(path)
        return False
    restore_replaced_run(path)
    return True


def remove_temporary_files(path: Path) -> None:
    """Remove temporary files that a killed process left behind. The caller must hold the lock of the run."""
    for folder in (path, *(entry for entry in path.rglob("*") if entry.is_dir() and not entry.is_symlink())):
        for file in folder.iterdir():
            if TEMPORARY_FILE.fullmatch(file.name) and file.is_file():
                file.unlink(missing_ok=True)


def _foreign_names(path: Path) -> set[str]:
    """Return the names of files and folders in a run folder that do not belong to a run."""
    names, patterns = {entry.name for entry in path.iterdir()} - RUN_FILES, (TEMPORARY_FILE, HEAD_FILE, FRAME_FILE)
    return {name for name in names if not any(pattern.fullmatch(name) for pattern in patterns)}
