"""The fit of a regression, its evaluation on the test images, and the files of the run."""

import shlex
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from paucal.backbones.stage_classifier import add_stage_classifier, last_stage_maps
from paucal.evaluation.predictions import predict_in_order
from paucal.metrics.regression import RegressionReport, conformal_half_width
from paucal.models.features import ClassifierInputs, StagedInputs, linear_classifier
from paucal.models.regression import LEVEL
from paucal.models.trained import TrainedModel, save_trained
from paucal.report.regression import write_regression_report
from paucal.runner.console import Console
from paucal.runner.frames import read_table, to_pandas
from paucal.runner.images import eval_loader
from paucal.runner.job import EvaluatedRun
from paucal.runs import RunFolder
from paucal.tasks.regression.evaluation import (
    evaluate_numbers,
    format_number,
    interval_words,
    report_table,
    write_scores,
)
from paucal.tasks.regression.fitting import Array, FittedRidge, fit_grades, fit_ridge
from paucal.tasks.regression.images import RegressionSetup
from paucal.tasks.regression.model import load_regressor
from paucal.wording import counted

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class RegressionResult(EvaluatedRun):
    """A finished run of `paucal train --target`.

    Its `metrics` are "mae", "rmse", "r2" and "coverage", with `ordinal` also "exact" and "kappa".

    Attributes:
        folder: Run folder.
        report: Scores on the test images with intervals.
        seconds: Seconds of the fit.
    """

    report: RegressionReport

    @property
    def model(self) -> TrainedModel:  # type: ignore[override]
        """The model on the CPU; its `probabilities` are (N, 1) numbers in the unit of the target."""
        return load_regressor(self.folder)

    @property
    def predictions(self) -> "DataFrame":
        """The test images as a DataFrame: key, target, predicted, low and high.

        Raises:
            UserError: The file is missing or damaged, or pandas is not installed.
        """
        return to_pandas(read_table(RunFolder(self.folder).evaluation("test") / "predictions.csv"))


def conclude(run: RunFolder, setup: RegressionSetup, console: Console) -> RegressionResult:
    """Fit the regression to the training images, and evaluate it once on the test images."""
    start_time, settings, data = time.monotonic(), setup.settings, setup.data
    network, train = setup.objective.deployable().to(settings.device), data.part("train")
    size = setup.card.backbone.image_size
    staged = bool(last_stage_maps(network, size))
    inputs = StagedInputs(network, size) if staged else ClassifierInputs(network)
    try:
        with console.progress("features") as advance:
            loader = eval_loader(data, train, setup.card.preprocessing, settings)
            features = predict_in_order(inputs, loader, train, settings.device, advance).double().numpy()
    finally:
        inputs.close()
    network, fitted, staged = _fit_best(network.cpu(), size, features, data.targets[train], settings.seed)
    truth, grades = data.targets[train], None
    if settings.ordinal:
        ends = int(data.targets.min()), int(data.targets.max())
        grades, half_width = fit_grades(truth + fitted.residuals, truth, *ends)
    else:
        half_width = conformal_half_width(fitted.residuals, LEVEL)
    statistics = {"mean": float(truth.mean()), "deviation": float(truth.std()) or 1.0}
    card = replace(setup.card, half_width=half_width, **statistics, grades=grades, reads_stages=staged)
    save_trained(run, network, card)
    model, part = load_regressor(run, settings.device), data.part("test")
    truth, groups = data.targets[part], data.split.groups
    with console.progress("testing") as advance:
        loader = eval_loader(data, part, model.card.preprocessing, settings)
        report, predicted = evaluate_numbers(model, loader, truth, part, settings.seed, advance, groups)
    write_scores(run.evaluation("test"), run.plots, report, data.images, part, truth, predicted)
    seconds = time.monotonic() - start_time
    run.write_json("summary.json", _summary(run, setup, fitted, report, seconds))
    page = write_regression_report(run.path)
    console.show(report_table(report))
    mae, interval = format_number(report.scores["mae"], "mae")
    gain, gain_interval = format_number(report.gain, "gain")
    for line in (
        "",
        f"test MAE of {settings.target}: {mae} ({interval_words(interval, report)}); always predicting "
        f"the mean: {report.baseline:.3g}, so {gain} less{f' ({gain_interval})' if gain_interval else ''}",
        f"results are in {run.path}: {page.name} (open it in a browser), {run.weights.name}, plots/predicted.png",
        "try next:",
        *(f"  {step}" for step in _next_steps(run)),
    ):
        console.say(line)
    return RegressionResult(run.path, report, seconds)


def _fit_best(
    network: nn.Module, size: tuple[int, int], features: Array, targets: Array, seed: int
) -> tuple[nn.Module, FittedRidge, bool]:
    """Return the network with the fitted ridge regression, the regression, and whether it reads the last stages too.

    The (N, D) features begin with the last features; pooled maps of the last stages follow if the network has maps.
    Cross-validation within the training images decides which are used.
    """
    classifier = linear_classifier(network)
    assert classifier is not None
    width = classifier.in_features
    fitted, reads_stages = fit_ridge(features[:, :width], targets, seed), False
    if features.shape[1] > width:
        two_stage_fit = fit_ridge(features, targets, seed)
        if (two_stage_fit.residuals**2).mean() < (fitted.residuals**2).mean():
            fitted, reads_stages, network = two_stage_fit, True, add_stage_classifier(network, size)
            classifier = linear_classifier(network)
            assert classifier is not None
    with torch.no_grad():
        classifier.weight.copy_(torch.from_numpy(fitted.weight)[None])
        classifier.bias.fill_(fitted.bias)
    return network, fitted, reads_stages


def _summary(
    run: RunFolder, setup: RegressionSetup, fitted: FittedRidge, report: RegressionReport, seconds: float
) -> dict[str, Any]:
    data, card = setup.data, setup.card
    return {
        "title": f"{setup.settings.target} of {data.images.name}",
        "kind": "regression",
        "model": card.backbone.name,
        "method": f"ridge regression on {len(fitted.weight)} frozen features, penalty {fitted.strength:g}",
        "data": f"{data.images.name}: {counted(len(data.images), 'image')}",
        "split": data.split.description,
        "parts": data.counts(),
        "parameters": setup.parameters,
        "epochs": 0,
        "selected": True,
        "seconds": round(seconds, 1),
        "cross_validated_mae": float(np.abs(fitted.residuals).mean()),
        "test_mae": report.scores["mae"].value,
        "start": None if setup.start is None else setup.start.short(),
        "remarks": list(setup.remarks),
        "next_steps": _next_steps(run),
    }


def _next_steps(run: RunFolder) -> list[str]:
    path = shlex.quote(str(run.path))
    return [
        f"paucal predict {path} new_images/     # numbers of new images, with 90 % intervals",
        f"paucal eval {path} more.csv     # the same scores on other images",
    ]
