"""`paucal eval` for a run of `paucal train --target`: evaluation on images with target values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.loader import inference_batch_size, make_eval_loader
from paucal.metrics.intervals import Score
from paucal.metrics.regression import RegressionReport
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.images import load_images
from paucal.runs import RunFolder, open_model_folder
from paucal.settings.shared import LabelledDataSettings
from paucal.tasks.regression.evaluation import (
    evaluate_regression,
    format_regression_score,
    interval_text,
    report_table,
    write_scores,
)
from paucal.tasks.regression.images import read_targets
from paucal.tasks.regression.model import card_of, load_regressor
from paucal.types import UserError
from paucal.verbs.eval.images import choose_images, print_notes, report_folder
from paucal.verbs.eval.settings import EvalSettings

PLOT = "predicted.png"  # file name of the plot


@dataclass(frozen=True)
class NumberedSet:
    """The scores of a regression model on one set of images.

    Attributes:
        data: Name of the set.
        report: Scores with intervals.
        folder: Folder of the tables and the plot.
    """

    data: str
    report: RegressionReport
    folder: Path

    @property
    def scores(self) -> dict[str, Score]:
        """The scores with their intervals, by name."""
        return self.report.scores

    @property
    def metrics(self) -> dict[str, float]:
        """The scores without intervals, by name."""
        return self.report.values


def evaluate_regressor(model: str, data: Sequence[str], settings: EvalSettings, console: Console) -> list[NumberedSet]:
    """Evaluate the model of a run on each set of images with target values, by default on the run's test images."""
    run = open_model_folder(model)
    regressor, results = load_regressor(run, settings.device), []
    if not data and not run.config.exists():
        raise UserError(f"{str(run.path)!r} does not name its training images: give DATA.")
    for target in data or [None]:
        all_images = _open_images(run, target, settings, regressor, console)
        images, targets = read_targets(all_images, card_of(regressor).target, min_targets=2)
        selection = choose_images(run, images, settings.part, target)
        print_notes(console, images, regressor.card.preprocessing.decode_options, selection)
        preprocess, indices = regressor.card.preprocessing, np.asarray(selection.positions, dtype=np.int64)
        batch_size = inference_batch_size(preprocess.image_size, settings.device, settings.batch_size)
        loader = make_eval_loader(images, indices, preprocess.transform(), batch_size, settings.workers)
        with console.progress("evaluating") as advance:
            test = (loader, targets[indices], indices)
            report, predicted = evaluate_regression(regressor, *test, settings.seed, advance, selection.groups)
        folder = report_folder(run, target, data, settings)
        write_scores(folder, folder, report, images, indices, targets[indices], predicted)
        console.show(report_table(report))
        mae, interval = format_regression_score(report.scores["mae"], "mae")
        console.say(
            f"{images.name}: MAE {mae} ({interval_text(interval, report)}); always "
            f"predicting the mean gives {report.baseline:.3g}; the predictions and {PLOT} are in {folder}"
        )
        results.append(NumberedSet(images.name, report, folder))
    return results


def _open_images(
    run: RunFolder, target: str | None, settings: EvalSettings, model: TrainedModel, console: Console
) -> ImageSet:
    names = ("data_root", "image_column", "channels", "on_bad_image")
    opening_settings = {name: getattr(settings, name) for name in names}
    if target is None:
        run_settings = run.settings
        opening_settings = {name: run_settings[name] for name in names if name in run_settings}
        target = str(run_settings.get("data", ""))
    data_settings = replace(LabelledDataSettings(data=target), **opening_settings)
    with console.progress("reading images") as advance:
        return load_images(data_settings, advance, labelled=False, reading=model.card.preprocessing.decode_options)
