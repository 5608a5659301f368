"""Cross-validation: as many runs as there are folds, each tested on another one, and what they reach on average."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from paucal.evaluation.reports import read_report
from paucal.methods.training_settings import TrainSettings
from paucal.reading import named_path
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.run.life import Stopped, begin, resume
from paucal.verbs.run.outputs import DEFAULT, refuse_inside_images
from paucal.verbs.run.voice import Voice
from paucal.verbs.training.job import TrainingJob

RECORD = "folds.json"
_OWN = ("folds", "fold", "output", "overwrite", "time_limit")  # not part of what makes the folds comparable


@dataclass(frozen=True)
class CrossValidated:
    """What the runs of a cross-validation have reached on their test folds.

    Attributes:
        folder: that holds the runs `fold-1`, `fold-2`, ...
        folds: the scores of each run on its test fold.
    """

    folder: Path
    folds: Sequence[Mapping[str, float]]

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of every score over the folds."""
        return {name: statistics.fmean(one[name] for one in self.folds) for name in self.folds[0]}

    @property
    def spread(self) -> dict[str, float]:
        """The standard deviation of every score over the folds, with n - 1 in the denominator."""
        return {name: statistics.stdev(one[name] for one in self.folds) for name in self.folds[0]}


def cross_validate(settings: TrainSettings, given: Mapping[str, str], voice: Voice) -> CrossValidated | Stopped:
    """Train once for every fold and judge each model on the fold that it has not seen.

    Folds that are finished already are not trained again, and one that was stopped goes on, so that the same call goes
    on after an interrupt.

    Args:
        settings: of every run, with `folds`; `--time` and `--time-limit` count for each run.
        given: the origin of each setting that was given.
        voice: prints and shows progress.

    Returns:
        The scores, or where one of the runs was stopped.

    Raises:
        UserError: the data or a setting does not do, or the folder holds other runs.
    """
    folds = settings.folds
    if folds is None or settings.fold is not None:
        raise UserError("--folds trains all folds and --fold one of them: give one of the two.")
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise UserError("--folds trains with one process: for several, train each fold by itself, as with --fold 1/5.")
    folder, found = _folder(settings), []
    for number in range(1, folds + 1):
        voice.say(f"fold {number} of {folds}")
        scores = _train_fold(folder / f"fold-{number}", number, settings, given, voice)
        if isinstance(scores, Stopped):
            voice.say(f"cross-validation was stopped in fold {number}: the same call with --output {folder} goes on")
            return scores
        found.append(scores)
    result = CrossValidated(folder, found)
    content = {"settings": _comparable(settings), "folds": found, "mean": result.metrics, "spread": result.spread}
    RunFolder(folder).write_json(RECORD, content)
    voice.show(_table(result))
    voice.say(f"everything lies in {folder}: {RECORD} and a run for each fold")
    return result


def _train_fold(
    path: Path, number: int, settings: TrainSettings, given: Mapping[str, str], voice: Voice
) -> dict[str, float] | Stopped:
    run = RunFolder(path)
    if not settings.overwrite and run.finished:
        voice.say(f"{path} is finished already")
        return _scores(run)
    if not settings.overwrite and run.config.is_file():
        result = resume(TrainingJob(), path, voice)
    else:
        own = replace(settings, folds=None, fold=f"{number}/{settings.folds}", output=str(path))
        origin = {name: word for name, word in given.items() if name != "folds"}
        result = begin(TrainingJob(), own, {**origin, "fold": given.get("folds", "given"), "output": "given"}, voice)
    return result if isinstance(result, Stopped) else _scores(run)


def _scores(run: RunFolder) -> dict[str, float]:
    return dict(read_report(run.read_json("evaluation/test/metrics.json")).values)


def _folder(settings: TrainSettings) -> Path:
    """Return the folder of all folds, with the settings written down that they share."""
    if settings.output is None:
        number = 1
        while (DEFAULT / f"folds-{number}").exists():
            number += 1
        folder = DEFAULT / f"folds-{number}"
    else:
        folder = named_path(settings.output)
    refuse_inside_images(folder, {"DATA": settings.data}, settings.data_root)
    record = folder / RECORD
    if folder.exists() and not settings.overwrite and any(folder.iterdir()):
        stored = RunFolder(folder).read_json(RECORD).get("settings") if record.is_file() else None
        if stored != _comparable(settings):
            raise UserError(
                f"--output: {str(folder)!r} holds something else than these folds with these settings: choose another "
                "folder, or replace it with --overwrite."
            )
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_json(RECORD, {"settings": _comparable(settings)})
    return folder


def _comparable(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that all folds share, as JSON gives them back."""
    values = {name: value for name, value in vars(settings).items() if name not in _OWN or name == "folds"}
    return json.loads(json.dumps(values, default=str))


def _table(result: CrossValidated) -> Table:
    table = Table(title=f"{len(result.folds)} folds", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("score")
    for heading in (*(f"fold {number + 1}" for number in range(len(result.folds))), "mean", "spread"):
        table.add_column(heading, justify="right")
    for name, mean in result.metrics.items():
        cells = [f"{one[name]:.4g}" for one in result.folds]
        table.add_row(name, *cells, f"{mean:.4g}", f"± {result.spread[name]:.2g}")
    return table
