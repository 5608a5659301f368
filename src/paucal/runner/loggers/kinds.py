"""Experiment trackers that a run can log to, each through its Lightning logger.

Each is an optional package, imported only when it is used. They write into the run folder, unless their own
environment variables name another place.
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

PROJECT = "paucal"  # unless an environment variable names another
ENDINGS = ("success", "failed", "stopped")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Kind:
    """How to use one kind of logger.

    Attributes:
        open: Opens the logger of a run, given the stored id of the run in that program; None for a new run.
        score: Logs the settings and the final scores, of which there may be none.
        close: Closes the logger with one of `ENDINGS`.
        place: Returns the path or the URL of the logs.
    """

    open: Callable[[RunFolder, str | None], Logger]
    score: Callable[[Any, Mapping[str, Any], dict[str, float], int], None]
    close: Callable[[Any, str], None]
    place: Callable[[Any], str]


def check_loggers(names: Sequence[str] | None) -> None:
    """Refuse loggers whose packages are not installed.

    Raises:
        UserError: A package is missing.
    """
    for name in names or ():
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, as some loggers create, has no origin
            raise UserError(
                f"--logger {name} needs the package {name}, which is not installed: pip install "
                f'"paucal[{name}]", or leave {name} out.'
            )


def checked_id(found: object) -> str | None:
    """Return a stored id of a run; None if it is not a valid one."""
    return found if isinstance(found, str) and _ID.fullmatch(found) else None


def _open_tensorboard(run: RunFolder, known: str | None) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    path = str(run.path.resolve())
    if os.path.expandvars(path) != path:
        raise UserError(f"--logger tensorboard would expand a variable in {path!r}: choose another --output.")
    return TensorBoardLogger(path, name="", version="tensorboard", default_hp_metric=False)


def _open_mlflow(run: RunFolder, known: str | None) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    elsewhere = os.environ.get("MLFLOW_TRACKING_URI")
    folder = run.path.resolve()
    logger = MLFlowLogger(
        os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT),
        run_name=run.path.name,
        tracking_uri=elsewhere or f"sqlite:///{folder / 'mlflow.db'}",  # the file store is deprecated
        artifact_location=None if elsewhere else (folder / "mlartifacts").as_uri(),
        run_id=known,
    )
    logger.experiment.set_terminated(logger.run_id, "RUNNING")  # a resumed run is marked as ended
    return logger


def _open_wandb(run: RunFolder, known: str | None) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    # Otherwise it would overwrite the progress bar; the run has its own log.
    quiet = import_module("wandb").Settings(console="off")
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    name, number = run.path.name, known or uuid.uuid4().hex[:8]
    return WandbLogger(name=name, save_dir=run.path.resolve(), project=project, id=number, settings=quiet)


def _score_beside_settings(logger: Any, settings: Mapping[str, Any], scores: dict[str, float], step: int) -> None:
    # TensorBoard needs a score to show the settings: a run without test images logs its number of steps.
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
    logger.experiment.finish(exit_code=int(ending != "success"))  # the next run in this process gets its own


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
