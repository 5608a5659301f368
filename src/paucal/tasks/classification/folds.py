"""Cross-validation: train once per fold, test on that fold, and report the mean scores."""

import itertools
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from paucal.evaluation.results import read_report
from paucal.methods.training_settings import TrainSettings
from paucal.reading import expand_user_path
from paucal.runner.console import Console, SilentConsole
from paucal.runner.frames import Data, takes_frames
from paucal.runner.life import Stopped, begin, resume
from paucal.runner.outputs import refuse_inside_images
from paucal.runs import RunFolder
from paucal.runs.folder import RUNS_FOLDER
from paucal.settings.values import given_names, settings_from_keywords, with_settings_signature
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError

RECORD_FILE = "folds.json"
# Settings that may differ between the runs of a cross-validation, or when a stopped cross-validation is continued.
FOLD_SETTINGS = ("folds", "fold", "output", "overwrite", "time_limit", "hang_after")


@dataclass(frozen=True)
class CrossValidated:
    """The scores of a cross-validation.

    Attributes:
        folder: Folder of the runs `fold-1`, `fold-2`, ...
        folds: Test scores of each fold, by name of the score.
    """

    folder: Path
    folds: Sequence[Mapping[str, float]]

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each score over the folds.

        Scores that are missing in a fold are left out, such as ROC-AUC if all images of the fold have the same class.
        """
        return {name: statistics.fmean(scores[name] for scores in self.folds) for name in self._common_names}

    @property
    def spread(self) -> dict[str, float]:
        """The sample standard deviation of each score over the folds."""
        return {name: statistics.stdev(scores[name] for scores in self.folds) for name in self._common_names}

    @property
    def _common_names(self) -> list[str]:
        return [name for name in self.folds[0] if all(name in scores for scores in self.folds)]


@with_settings_signature(TrainSettings)
@takes_frames
def cross_validate(data: Data | None = None, *, folds: int = 5, **settings: Any) -> CrossValidated:
    """Train once per fold, and test each model on its held-out fold; the same as `paucal train --folds`.

    Args:
        data: Images, as in `paucal.train`; their predefined train, val and test folders are merged.
        folds: Number of folds.
        **settings: Settings as in `paucal.train`; `output` is the folder of all runs.

    Returns:
        The scores of every fold, their mean (`metrics`) and standard deviation (`spread`).

    Raises:
        UserError: The data or a setting is invalid, or a run was stopped.
        TypeError: A setting does not exist.

    Example:
        >>> result = paucal.cross_validate("photos/", folds=5, group_by="patient[0-9]+")  # doctest: +SKIP
        >>> result.metrics["top1"], result.spread["top1"]  # doctest: +SKIP
        (0.91, 0.02)
    """
    values = {**settings, "folds": folds, **({} if data is None else {"data": data})}
    typed = settings_from_keywords(TrainSettings, values, "paucal.cross_validate", "train")
    result = train_folds(typed, dict.fromkeys(given_names(values), "given"), SilentConsole())
    if isinstance(result, Stopped):
        raise UserError(f"{result}.")
    return result


def train_folds(settings: TrainSettings, origins: Mapping[str, str], console: Console) -> CrossValidated | Stopped:
    """Train once per fold and evaluate each model on its held-out fold.

    Finished folds are skipped and a stopped fold is resumed, so the same call continues after an interrupt. `--time`
    and `--time-limit` apply to each run.
    """
    folds = settings.folds
    if folds is None or settings.fold is not None:
        raise UserError("--folds trains on all folds, and --fold on a single fold: give only one of the two options.")
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise UserError(
            "--folds supports a single process only: with several processes, train each fold separately, for example "
            "with --fold 1/5."
        )
    folder, results = _prepare_folder(settings), []
    for number in range(1, folds + 1):
        console.say(f"fold {number} of {folds}")
        run, result = RunFolder(folder / f"fold-{number}"), None
        if not settings.overwrite and run.finished:
            console.say(f"{run.path} is finished already")
        elif not settings.overwrite and run.config.is_file():
            result = resume(TrainingJob(), run.path, console)
        else:
            fold_settings = replace(settings, folds=None, fold=f"{number}/{folds}", output=str(run.path))
            fold_origins = {name: origin for name, origin in origins.items() if name != "folds"}
            fold_origins |= {"fold": origins.get("folds", "given"), "output": "given"}
            result = begin(TrainingJob(), fold_settings, fold_origins, console)
        if isinstance(result, Stopped):
            advice = f"resume with the same call and --output {folder}"
            console.say(f"cross-validation was stopped in fold {number}: {advice}")
            return result
        results.append(dict(read_report(run.read_json("evaluation/test/metrics.json")).values))
    validated = CrossValidated(folder, results)
    scores = {"folds": results, "mean": validated.metrics, "spread": validated.spread}
    RunFolder(folder).write_json(RECORD_FILE, {"settings": _common_settings(settings), **scores})
    console.show(_score_table(validated))
    console.say(f"results are in {folder}: {RECORD_FILE} and a run for each fold")
    return validated


def _prepare_folder(settings: TrainSettings) -> Path:
    if settings.output is None:
        numbered_folders = (RUNS_FOLDER / f"folds-{number}" for number in itertools.count(1))
        folder = next(folder for folder in numbered_folders if not folder.exists())
    else:
        folder = expand_user_path(settings.output)
    refuse_inside_images(folder, {"DATA": settings.data}, settings.data_root)
    if folder.exists() and not settings.overwrite and any(folder.iterdir()):
        has_record = (folder / RECORD_FILE).is_file()
        stored_settings = RunFolder(folder).read_json(RECORD_FILE).get("settings") if has_record else None
        if stored_settings != _common_settings(settings):
            raise UserError(
                f"--output: {str(folder)!r} is not empty and has no folds with these settings: choose another folder, "
                "or replace this folder with --overwrite."
            )
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_json(RECORD_FILE, {"settings": _common_settings(settings)})
    return folder


def _common_settings(settings: TrainSettings) -> dict[str, Any]:
    values = {name: value for name, value in vars(settings).items() if name not in FOLD_SETTINGS or name == "folds"}
    return json.loads(json.dumps(values, default=str))


def _score_table(result: CrossValidated) -> Table:
    table = Table(title=f"{len(result.folds)} folds", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("score")
    for heading in (*(f"fold {number + 1}" for number in range(len(result.folds))), "mean", "spread"):
        table.add_column(heading, justify="right")
    for name, mean in result.metrics.items():
        cells = [f"{scores[name]:.4g}" for scores in result.folds]
        table.add_row(name, *cells, f"{mean:.4g}", f"± {result.spread[name]:.2g}")
    return table
