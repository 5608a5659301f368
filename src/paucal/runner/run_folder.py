"""Create, lock and replace the folder of a run: the old run is kept until the new run has saved its first checkpoint.

The old run in `runs/1` is moved to `runs/1.replaced`, with a note inside. If the new run ends before its first
checkpoint, the old run is moved back at once. If the new run was killed, the next command that uses the folder moves
the old run back.
"""

import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning.pytorch import Callback, Trainer

from paucal.data.decoded.cache_folder import dataframes_folder
from paucal.data.sources.opening import BUILT_IN
from paucal.reading import expand_user_path
from paucal.runner.console import Console
from paucal.runner.outputs import is_inside, refuse_inside_images
from paucal.runner.writable import check_folder_writable
from paucal.runs import RunFolder, create_run
from paucal.runs.folder import ASIDE_SUFFIX, CONFIG_FILE, FRAME_FILE, RUNS_FOLDER, is_nonempty
from paucal.runs.ledger import LEDGER_FOLDER
from paucal.runs.lock import LOCK_FILE, RunLock, has_holder, require_unlocked
from paucal.settings.options import flag
from paucal.settings.shared import JobSettings
from paucal.types import UserError
from paucal.writing import link_or_copy

if TYPE_CHECKING:
    from paucal.runner.job import RunSetup

S = TypeVar("S", bound=JobSettings)
A = TypeVar("A", bound="RunSetup[Any]")
NOTE_FILE = "replaced.txt"
# Names of the files and folders that runs write. Any other file in a run folder belongs to the user.
RUN_FILES = {
    *(CONFIG_FILE, LOCK_FILE, NOTE_FILE, LEDGER_FOLDER),
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
    """Clean up if a new run was killed while replacing an old run; return whether the old run was moved back."""
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


class RunWriter(Callback):
    """Context manager that locks a run folder, and keeps a replaced run until the new run has a valid checkpoint.

    As a Lightning callback, it stops a run that has lost its lock, and removes the replaced run.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._run: RunFolder | None = None
        self._lock: RunLock | None = None
        self._keeps_replaced = False  # whether this run replaces an old run that has not been removed yet

    def begin(self, output: str | None, overwrite: bool) -> RunFolder:
        """Create and lock the folder of a new run; an old run in this folder is first moved to another path."""
        path = None if output is None else Path(output)
        if path is not None and overwrite and is_nonempty(path):
            require_replaceable(path)
            # Lock the old run, so that no other process replaces or resumes that run meanwhile.
            lock = RunLock(path)
            lock.acquire()
            try:
                aside_folder = move_aside(path)
                self._run, self._keeps_replaced = RunFolder(path), True
                lock.folder, lock.path = aside_folder, aside_folder / lock.path.name
            finally:
                lock.release()
            self.console.say(f"the old run is kept in {aside_folder} until the new run has saved its first checkpoint")
        run = create_run(path)
        self._acquire_lock(run)
        return run

    def lock_existing(self, run: RunFolder) -> None:
        """Lock the folder of an existing run."""
        self._acquire_lock(run)
        remove_temporary_files(run.path)
        if has_set_aside_run(run.path):  # an earlier process was killed before it removed the replaced run
            self._keeps_replaced = True
            if run.last.exists():
                self._discard_replaced(run)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Raise a UserError if another process has taken over the lock."""
        if self._lock is not None:
            self._lock.check()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Remove the replaced run once this run has saved a valid checkpoint."""
        run = self._run
        if self._keeps_replaced and run is not None and run.last.exists() and is_valid_state(trainer, pl_module):
            self._discard_replaced(run)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost_lock = self._lock is not None and self._lock.lost
        if self._lock is not None:
            self._lock.release()
        if not self._keeps_replaced or self._run is None or lost_lock:
            return
        path = self._run.path
        if problem is None:
            self._discard_replaced(self._run)
        elif self._lock is None and path.exists():  # another process locked the folder first
            self.console.say(f"the old run is in {aside_path(path)}")
        else:
            restore_replaced_run(path)
            self.console.say(f"restored the old run in {path}: the new run ended before it saved a valid checkpoint")

    def _acquire_lock(self, run: RunFolder) -> None:
        lock = RunLock(run.path)
        lock.acquire()
        self._run, self._lock = run, lock

    def _discard_replaced(self, run: RunFolder) -> None:
        self._keeps_replaced = False
        discard_replaced_run(run.path)


def is_valid_state(trainer: Trainer, module: Any) -> bool:
    """Return whether the weights are finite and at most half of the steps were skipped."""
    if 2 * float(module.meters.skipped) > trainer.global_step:
        return False
    # If the weights are sharded, only the local shard is checked, since other processes do not call this function.
    local_weights = (p.to_local() if hasattr(p, "to_local") else p for p in module.parameters())
    return all(bool(torch.isfinite(weights.detach()).all()) for weights in local_weights)


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
    try:
        is_taken = is_nonempty(path)
    except (OSError, ValueError):  # `check_folder_writable` reports long names and unreadable folders
        is_taken = False
    if not is_taken:
        check_folder_writable(path)
    elif not settings.overwrite:
        create_run(path)  # raises an error with advice
    else:
        require_replaceable(path)
        check_folder_writable(path)
        check_folder_writable(aside_path(path))
        for name, value in read_paths.items():
            if value != BUILT_IN and is_inside(expand_user_path(value, name), path):
                raise UserError(
                    f"{name}: {value!r} is inside the run folder, which --overwrite would remove: choose another "
                    "--output."
                )
    return replace(settings, output=str(path))


def copy_frame_to_run(run: RunFolder, setup: A) -> A:
    """Copy a stored DataFrame into the run folder, so that the run can be repeated, and return the new setup."""
    if setup.settings.data is None:  # segmentation may have --images instead
        return setup
    path = Path(setup.settings.data)
    if path.parent != dataframes_folder().resolve() or not FRAME_FILE.fullmatch(path.name):
        return setup
    copy = run.path.resolve() / path.name
    if not copy.exists():
        link_or_copy(path, copy)
    data = setup.data
    if data.images.location == str(path):
        data = replace(data, images=replace(data.images, location=str(copy)))
    return replace(setup, settings=replace(setup.settings, data=str(copy)), data=data)
