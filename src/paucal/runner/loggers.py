"""Log a run to TensorBoard, MLflow or wandb: settings at the start, a row per epoch, and test scores at the end.

Each logger is an optional package, which is used through its Lightning logger and imported only if requested. Loggers
write into the run folder, unless a logger's environment variables set another location. If a logger fails, it is
dropped and the run continues, since `metrics.csv` does not depend on loggers.
"""

import math
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from lightning.pytorch.loggers.logger import Logger

from paucal.runner.console import Console
from paucal.runs import RunFolder
from paucal.settings.shared import JobSettings
from paucal.types import UserError
from paucal.wording import shorten

DEFAULT_PROJECT = "paucal"  # name of the wandb project and the MLflow experiment
STATUSES = ("success", "failed", "stopped")  # outcomes of a run
_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
RECORD_FILE = "loggers.json"  # file in the run folder with the ids of the loggers and the last logged step
MAX_ERROR_CHARACTERS = 200  # maximum length to which a logger's error messages are shortened


@dataclass(frozen=True)
class LoggerFunctions:
    """The functions that open, use and close one type of logger."""

    # Opens the logger of a run, given the run folder and the logger's stored id (None for a new logger)
    open: Callable[[RunFolder, str | None], Logger]
    # Logs the settings and the final scores, which may be empty, at an optimizer step
    log_scores: Callable[[Any, Mapping[str, Any], dict[str, float], int], None]
    close: Callable[[Any, str], None]  # closes the logger with one of `STATUSES`
    place: Callable[[Any], str]  # returns the path or URL of the logs


def check_loggers(names: Sequence[str] | None) -> None:
    """Refuse loggers whose packages are not installed."""
    for name in names or ():
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a mere folder with the package's name has no origin
            raise UserError(
                f"--logger {name} needs the package {name}, which is not installed: pip install "
                f'"paucal[{name}]", or remove {name} from --logger.'
            )


def checked_id(value: object) -> str | None:
    """Return the stored id by which a logger identifies a run; None if the value is invalid."""
    return value if isinstance(value, str) and _ID_PATTERN.fullmatch(value) else None


def _open_tensorboard(run: RunFolder, run_id: str | None) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    path = str(run.path.resolve())
    if os.path.expandvars(path) != path:
        raise UserError(
            f"--logger tensorboard would expand an environment variable in {path!r}: choose another --output."
        )
    return TensorBoardLogger(path, name="", version="tensorboard", default_hp_metric=False)


def _open_mlflow(run: RunFolder, run_id: str | None) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    server = os.environ.get("MLFLOW_TRACKING_URI")
    folder = run.path.resolve()
    logger = MLFlowLogger(
        os.environ.get("MLFLOW_EXPERIMENT_NAME", DEFAULT_PROJECT),
        run_name=run.path.name,
        tracking_uri=server or f"sqlite:///{folder / 'mlflow.db'}",  # MLflow has deprecated its file store
        artifact_location=None if server else (folder / "mlartifacts").as_uri(),
        run_id=run_id,
    )
    logger.experiment.set_terminated(logger.run_id, "RUNNING")  # in MLflow, a resumed run is still marked as ended
    return logger


def _open_wandb(run: RunFolder, run_id: str | None) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    # Do not capture the console, since that would overwrite the progress bar, and the run has its own log.
    settings = import_module("wandb").Settings(console="off")
    project = os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT)
    name, wandb_id = run.path.name, run_id or uuid.uuid4().hex[:8]
    return WandbLogger(name=name, save_dir=run.path.resolve(), project=project, id=wandb_id, settings=settings)


def _log_scores(logger: Any, settings: Mapping[str, Any], scores: dict[str, float], step: int) -> None:
    if scores:
        logger.log_metrics(scores, step)


def _close_wandb(logger: Any, status: str) -> None:
    logger.finalize(status)
    # Otherwise, a later run in this process would continue the same wandb run.
    logger.experiment.finish(exit_code=int(status != "success"))


LOGGER_FUNCTIONS: dict[str, LoggerFunctions] = {
    "tensorboard": LoggerFunctions(
        _open_tensorboard,
        # TensorBoard shows settings only together with a score, so a run without test images logs its number of steps.
        lambda logger, settings, scores, step: logger.log_hyperparams(
            dict(settings), scores or {"steps": float(step)}, step
        ),
        lambda logger, status: logger.finalize(status),
        lambda logger: str(logger.log_dir),
    ),
    "mlflow": LoggerFunctions(
        _open_mlflow,
        _log_scores,
        lambda logger, status: logger.finalize({"stopped": "KILLED"}.get(status, status)),
        lambda logger: str(logger._tracking_uri),
    ),
    "wandb": LoggerFunctions(
        _open_wandb,
        _log_scores,
        _close_wandb,
        lambda logger: str(logger.experiment.url or logger.experiment.settings.sync_dir),
    ),
}


class Loggers:
    """The loggers of a run, as a context manager that opens and closes the loggers.

    A resumed run continues the same logs. Epochs that are repeated after a crash are not logged twice. `names` are keys
    of `LOGGER_FUNCTIONS`. Only the first process has loggers.
    """

    def __init__(self, run: RunFolder, names: Sequence[str] | None, console: Console) -> None:
        self._run, self._names, self._console = run, list(dict.fromkeys(names or ())), console
        self._open_loggers: dict[str, Logger] = {}
        self._ids: dict[str, str] = {}
        self._new_loggers: list[str] = []
        self._logged_step = 0
        self._settings: dict[str, Any] = {}
        self._status = "stopped"

    def __enter__(self) -> "Loggers":
        if self._names:
            check_loggers(self._names)
            if (self._run.path / RECORD_FILE).exists():
                record = self._run.read_json(RECORD_FILE)
                ids, step = record.get("ids"), record.get("step")
                ids_by_name = ids.items() if isinstance(ids, dict) else ()
                self._ids = {name: run_id for name, value in ids_by_name if (run_id := checked_id(value)) is not None}
                self._logged_step = step if isinstance(step, int) else 0
            self._new_loggers = [name for name in self._names if name not in self._ids]
            if self._new_loggers:
                self._logged_step = 0  # a new logger has no row yet
            try:
                for name in self._names:
                    self._open(name)
            except BaseException:
                self._close_all("failed")
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_all("failed" if problem is not None else self._status)

    def log_settings(self, settings: JobSettings) -> None:
        """Log the resolved settings to each logger that this run uses for the first time."""
        self._settings = {name: value for name, value in asdict(settings).items() if value is not None}
        for name in self._new_loggers:  # only new loggers, since some loggers do not allow changing a logged setting
            self._call_or_drop(name, lambda logger: logger.log_hyperparams(dict(self._settings)))
        self._new_loggers = []

    def log_row(self, row: Mapping[str, float]) -> None:
        """Log the row of an epoch, unless the row was already logged before a crash."""
        step = int(row["step"])
        if not self._names or step <= self._logged_step:
            return

        def log_and_save(logger: Logger) -> None:
            logger.log_metrics({name: value for name, value in row.items() if name != "step"}, step)
            logger.save()  # otherwise, a crash would lose buffered values

        for name in list(self._open_loggers):
            self._call_or_drop(name, log_and_save)
        self._logged_step = step
        self._write_record()

    def forget_step(self) -> None:
        """Allow steps that were already logged to be logged again, since the run may go back to an earlier step."""
        self._logged_step = 0

    def finish(self, scores: Mapping[str, float], step: int) -> None:
        """Log the finite test scores of the finished run."""
        finite_scores = {f"test_{name}": float(value) for name, value in scores.items() if math.isfinite(value)}
        for name in list(self._open_loggers):
            score = LOGGER_FUNCTIONS[name].log_scores
            self._call_or_drop(name, lambda logger, score=score: score(logger, self._settings, finite_scores, step))
        self._status = "success"

    def _write_record(self) -> None:
        self._run.write_json(RECORD_FILE, {"ids": self._ids, "step": self._logged_step})

    def _open(self, name: str) -> None:
        functions = LOGGER_FUNCTIONS[name]
        try:
            logger = functions.open(self._run, self._ids.get(name))
            location = functions.place(logger)
        except UserError:
            raise
        except Exception as problem:  # any exception of the logger, its database or the network
            raise UserError(
                f"--logger {name} cannot be started ({type(problem).__name__}: {_one_line(problem)}): correct the "
                f"cause, or remove {name} from --logger."
            ) from problem
        self._open_loggers[name] = logger
        self._ids[name] = str(logger.version)
        self._write_record()
        self._console.say(f"{name}: logging to {location}")

    def _call_or_drop(self, name: str, action: Callable[[Any], None]) -> None:
        """Call a function with a logger, and drop the logger if that fails."""
        if name not in self._open_loggers:
            return
        try:
            action(self._open_loggers[name])
        except Exception as problem:  # any exception, since no logger may end the run
            del self._open_loggers[name]
            self._console.say(
                f"note: {name} failed ({_one_line(problem)}); the run continues, and metrics.csv has all values"
            )

    def _close_all(self, status: str) -> None:
        for name in list(self._open_loggers):
            self._call_or_drop(name, lambda logger, functions=LOGGER_FUNCTIONS[name]: functions.close(logger, status))
        self._open_loggers = {}


def _one_line(problem: Exception) -> str:
    return shorten(" ".join(str(problem).split()), MAX_ERROR_CHARACTERS)
