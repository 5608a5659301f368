"""`paucal eval` for a run of `paucal train --target`: evaluation on images with target values."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paucal.data.loader import inference_batch_size, make_eval_loader
from paucal.metrics.intervals import Score
from paucal.metrics.regression import RegressionReport
from paucal.models.regression import RegressionCard
from paucal.models.trained import TrainedModel, load_saved
from paucal.runner.console import Console
from paucal.runner.images import load_images
from paucal.runs import open_model_folder
from paucal.settings.shared import LabelledDataSettings
from paucal.tasks.regression.evaluation import (
    evaluate_regression,
    format_regression_score,
    interval_text,
    report_table,
    write_scores,
)
from paucal.tasks.regression.images import read_targets
from paucal.types import UserError
from paucal.verbs.eval.images import choose_images, print_notes, report_folder
from paucal.verbs.eval.settings import EvalSettings

PLOT = "predicted.png"  # file name of the plot
OPENING_SETTINGS = ("data_root", "image_column", "channels", "on_bad_image")


@dataclass(frozen=True)
class RegressionSet:
    """The scores of a regression model on one set of images."""

    data: str  # name of the set
    report: RegressionReport  # scores with intervals
    folder: Path  # folder of the tables and the plot

    @property
    def scores(self) -> dict[str, Score]:
        """The scores with their intervals, by name."""
        return self.report.scores

    @property
    def metrics(self) -> dict[str, float]:
        """The scores without intervals, by name."""
        return self.report.values


def evaluate_regressor(
    model: str, data: Sequence[str], settings: EvalSettings, console: Console
) -> list[RegressionSet]:
    """Evaluate the model of a run on each set of images with target values, by default on the run's test images."""
    run = open_model_folder(model)
    module, card, device = load_saved(run, RegressionCard, settings.device)
    regressor, preprocess, results = TrainedModel(module, card, device), card.preprocessing, []
    if not data and not run.config.exists():
        raise UserError(f"{str(run.path)!r} does not name its training images: give DATA.")
    for target in data or [None]:
        # The run's own images are opened with the settings of the run.
        source = run.settings if target is None else {**vars(settings), "data": target}
        opening_settings = {name: source[name] for name in OPENING_SETTINGS if name in source}
        data_settings = LabelledDataSettings(**{"data": str(source.get("data", "")), **opening_settings})
        with console.progress("reading images") as advance:
            all_images = load_images(data_settings, advance, labelled=False, decode_options=preprocess.decode_options)
        images, targets = read_targets(all_images, card.target, min_targets=2)
        selection = choose_images(run, images, settings.part, target)
        print_notes(console, images, preprocess.decode_options, selection)
        indices = np.asarray(selection.positions, dtype=np.int64)
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
        results.append(RegressionSet(images.name, report, folder))
    return results
