"""The programs whose loggers a run can fill, each opened through Lightning's logger for it.

Each is a package of its own, imported only where it is asked for. What they write lies in the run folder, unless
their own environment variables send it elsewhere.
"""

import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lightning.pytorch.loggers.logger import Logger

from paucal.runs import RunFolder
from paucal.types import UserError

PROJECT = "paucal"  # where a variable of the program names no other
ENDINGS = ("success", "failed", "stopped")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Kind:
    """What is done differently for each program.

    Attributes:
        open: opens the logger of a run; the id is that under which the program knows the run, None for a new one.
        score: logs final scores with the settings that gave them; there may be none.
        close: ends the logger; the ending is one of `ENDINGS`.
        place: says where the program's files or its page are.
    """

    open: Callable[[RunFolder, str | None], Logger]
    score: Callable[[Any, Mapping[str, Any], dict[str, float], int], None]
    close: Callable[[Any, str], None]
    place: Callable[[Any], str]


def check_loggers(names: Sequence[str] | None) -> None:
    """Refuse loggers whose packages are not installed, before anything is trained.

    Raises:
        UserError: a package is missing.
    """
    for name in names or ():
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, as some of them make, has no origin
            raise UserError(
                f"--logger {name} needs the package {name}, which is not installed: pip install "
                f'"paucal[{name}]", or leave {name} out.'
            )


def checked_id(found: object) -> str | None:
    """Return the id under which a program knows a run; None where a file names none that could be one."""
    return found if isinstance(found, str) and _ID.fullmatch(found) else None


def _open_tensorboard(run: RunFolder, known: str | None) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    path = str(run.path.resolve())
    if os.path.expandvars(path) != path:
        raise UserError(f"--logger tensorboard would take a part of {path!r} for a variable: give another --output.")
    return TensorBoardLogger(path, name="", version="tensorboard", default_hp_metric=False)


def _open_mlflow(run: RunFolder, known: str | None) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    elsewhere = os.environ.get("MLFLOW_TRACKING_URI")
    folder = run.path.resolve()
    logger = MLFlowLogger(
        os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT),
        run_name=run.path.name,
        tracking_uri=elsewhere or f"sqlite:///{folder / 'mlflow.db'}",  # files are no longer a store of theirs
        artifact_location=None if elsewhere else (folder / "mlartifacts").as_uri(),
        run_id=known,
    )
    logger.experiment.set_terminated(logger.run_id, "RUNNING")  # one that goes on has ended before
    return logger


def _open_wandb(run: RunFolder, known: str | None) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    # Else it would write over the bar on the terminal; the run has a log of its own.
    quiet = import_module("wandb").Settings(console="off")
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    name, number = run.path.name, known or uuid.uuid4().hex[:8]
    return WandbLogger(name=name, save_dir=run.path.resolve(), project=project, id=number, settings=quiet)


def _score_beside_settings(logger: Any, settings: Mapping[str, Any], scores: dict[str, float], step: int) -> None:
    # In one table, which TensorBoard makes of both, and not of settings alone: a run without test images has its step.
    logger.log_hyperparams(dict(settings), scores or {"steps": float(step)}, step)


def _score_alone(logger: Any, settings: Mapping[str, Any], scores: dict[str, float], step: int) -> None:
    if scores:
        logger.log_metrics(scores, step)


def _close_tensorboard(logger: Any, ending: str) -> None:
    logger.finalize(ending)


def _close_mlflow(logger: Any, ending: str) -> None:
    logger.finalize({"stopped": "KILLED"}.get(ending, ending))


def _close_wandb(logger: Any, ending: str) -> None:
    logger.finalize(ending)
    logger.experiment.finish(exit_code=int(ending != "success"))  # the next run of this program has its own


KINDS: dict[str, Kind] = {
    "tensorboard": Kind(
        _open_tensorboard, _score_beside_settings, _close_tensorboard, lambda logger: str(logger.log_dir)
    ),
    "mlflow": Kind(_open_mlflow, _score_alone, _close_mlflow, lambda logger: str(logger._tracking_uri)),
    "wandb": Kind(
        _open_wandb,
        _score_alone,
        _close_wandb,
        lambda logger: str(logger.experiment.url or logger.experiment.settings.sync_dir),
    ),
}
