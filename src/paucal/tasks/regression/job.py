"""`paucal train --target`: predict a target value for each image by ridge regression on frozen features."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from PIL import Image
from torch import nn

from paucal.backbones.stage_classifier import add_stage_classifier, last_stage_poolings
from paucal.backbones.weights.checkpoints import timm_preprocessing
from paucal.methods.training import resolve_training
from paucal.methods.training_settings import TrainSettings
from paucal.metrics.regression import RegressionReport, conformal_half_width
from paucal.models.features import linear_classifier
from paucal.models.preprocessing import Preprocessing
from paucal.models.regression import INTERVAL_LEVEL, RegressionCard
from paucal.models.trained import TrainedModel, load_saved, save_trained
from paucal.objectives.finetuning import BackboneObjective
from paucal.report.regression import write_regression_report
from paucal.rules.resolve import backbone_spec
from paucal.runner.images import (
    compute_frozen_features,
    decode_images,
    decode_options_for_size,
    eval_loader,
    initial_decode_options,
    normalisation,
    open_undecoded,
    with_absolute_data_paths,
)
from paucal.runner.initial_weights import (
    MIN_SIDE,
    choose_initial_weights,
    chooses_initial_weights,
    find_initial_weights,
    load_initial_weights,
    with_absolute_init_path,
    without_none_init,
)
from paucal.runner.job import Bars, EpochListener, Job
from paucal.runner.results import EvaluatedRun, publish_results
from paucal.runner.trainer_plan import check_memory, hardware, seeded_random_weights
from paucal.runs import RunFolder
from paucal.settings.options import check_ranges, flag, list_origins
from paucal.tasks.regression.evaluation import (
    evaluate_regression,
    format_regression_score,
    interval_text,
    report_table,
    write_scores,
)
from paucal.tasks.regression.fitting import Array, FittedRidge, fit_grades, fit_ridge
from paucal.tasks.regression.images import (
    ImagesWithTargets,
    RegressionSetup,
    describe_targets,
    grades_note,
    read_targets,
    require_grades,
    split_images_with_targets,
)
from paucal.training import Optimization, Outcome, Plan
from paucal.types import Batch, LossTerms, Progress, UserError
from paucal.wording import counted

# Settings that --target supports; all other settings are for the training of a network.
SUPPORTED_SETTINGS = (
    *("data", "data_root", "download", "on_bad_image", "image_column", "channels", "target", "model", "init"),
    *("img_size", "normalise", "resize", "device", "workers", "seed", "output", "overwrite", "logger", "epochs"),
    *("test_fraction", "group_by", "fold", "split", "precision", "ordinal", "print_config"),
)


@dataclass(frozen=True)
class RegressionResult(EvaluatedRun):
    """A finished run of `paucal train --target`; its `report` has the test scores with intervals.

    The `metrics` are "mae", "rmse", "r2" and "coverage"; with `ordinal` also "exact" and "kappa". The columns of
    `predictions` are key, target, predicted, low and high.
    """

    report: RegressionReport

    @property
    def model(self) -> TrainedModel:  # type: ignore[override]
        """The model on the CPU; `model.probabilities` returns (N, 1) predicted values in the unit of the target."""
        return TrainedModel(*load_saved(self.folder, RegressionCard))


class FrozenNetwork(BackboneObjective):
    """A frozen network whose one-output linear classifier receives the weights of the fitted regression."""

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Raise an error, since this objective cannot be trained."""
        _refuse_training()


def _fit_best_ridge(
    network: nn.Module, size: tuple[int, int], features: Array, targets: Array, seed: int
) -> tuple[nn.Module, FittedRidge, bool]:
    """Fit a ridge regression; return the network with the fitted weights, the fit, and whether the fit uses stage maps.

    The first columns of the (N, D) features are the inputs of the network's classifier. The other columns, if any, are
    pooled maps of the last stages; cross-validation decides whether the regression uses them.
    """
    classifier = linear_classifier(network)
    assert classifier is not None
    width = classifier.in_features
    fitted, reads_stages = fit_ridge(features[:, :width], targets, seed), False
    if features.shape[1] > width:
        stages_fit = fit_ridge(features, targets, seed)
        if (stages_fit.residuals**2).mean() < (fitted.residuals**2).mean():
            fitted, reads_stages, network = stages_fit, True, add_stage_classifier(network, size)
            classifier = linear_classifier(network)
            assert classifier is not None
    with torch.no_grad():
        classifier.weight.copy_(torch.from_numpy(fitted.weight)[None])
        classifier.bias.fill_(fitted.bias)
    return network, fitted, reads_stages


def _summary(setup: RegressionSetup, fitted: FittedRidge, report: RegressionReport, seconds: float) -> dict[str, Any]:
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
        "start": None if setup.load_report is None else setup.load_report.to_summary(),
        "remarks": list(setup.remarks),
    }


class RegressionJob(Job[TrainSettings, RegressionSetup, RegressionResult]):
    """Job of `paucal train --target`: fit a regression to frozen features."""

    verb = "train"
    settings_type = TrainSettings
    reads = ("data", "data_root", "init", "split")

    def check(self, settings: TrainSettings, origins: Mapping[str, str]) -> tuple[TrainSettings, dict[str, str]]:
        """Refuse settings that a regression does not use."""
        unused = [name for name in origins if name not in SUPPORTED_SETTINGS]
        if unused or settings.epochs not in (None, 0):
            name = unused[0] if unused else "epochs"
            raise UserError(
                f"{flag(name)} is not supported with --target, which fits a ridge regression to frozen features and "
                f"trains no network: remove {flag(name)}."
            )
        check_ranges(settings)
        return replace(without_none_init(settings), epochs=0, method="supervised"), dict(origins)

    def with_absolute_paths(self, settings: TrainSettings) -> TrainSettings:
        """Return settings with absolute paths."""
        return with_absolute_init_path(with_absolute_data_paths(settings, {"split"}))

    def assemble(
        self, settings: TrainSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> RegressionSetup:
        """Open the images and their target values, choose the pretrained weights, and build the network."""
        assert settings.target is not None
        column: str = settings.target
        with bars("looking through images") as advance:
            images, targets = read_targets(open_undecoded(settings, labelled=False, advance=advance), column)
        if settings.ordinal:
            require_grades(targets, column)
        data = ImagesWithTargets(images, split_images_with_targets(settings, images, run), targets=targets)
        remarks: list[str] = []
        if run is None and chooses_initial_weights(settings, origins):
            # A regression needs pretrained weights even for tiny images, which are enlarged to the weights' image size.
            settings, origins, choice = choose_initial_weights(
                settings, origins, max(data.facts().median_side, MIN_SIDE)
            )
            remarks = [choice.remark] if choice.remark else []
        weights_source = find_initial_weights(settings, run)
        if weights_source.read is None and weights_source.record is None:
            raise UserError(
                "--target needs trained weights, but no weights were found: give --init timm, a weights file or a run."
            )
        facts = replace(data.facts(), n_classes=1, initial_weights=weights_source.facts)
        settings, reasons = resolve_training(settings, facts)
        training_hardware = hardware(settings)  # refuses a missing device before images are decoded
        if run is None and "resize" not in origins:
            reason = "the number describes the whole image, so nothing may be cropped"
            settings, reasons["resize"] = replace(settings, resize="squash"), reason
        decode_options = decode_options_for_size(settings.img_size, initial_decode_options(settings, images))
        with bars("reading images") as advance:
            images = decode_images(images, settings, decode_options, advance)
        if len(images) < len(targets):  # unreadable images were skipped
            images, targets = read_targets(images, column)
            data = ImagesWithTargets(images, split_images_with_targets(settings, images, run), targets=targets)
        data = replace(data, images=images)
        with seeded_random_weights(settings.seed):
            spec, notes = backbone_spec(settings, 1, images.decode_options.channels)
            notes = [*check_memory(settings, spec), *notes]
            objective = FrozenNetwork(spec.build(), tuning=None)
        weights_input = weights_source.input(settings.model) if weights_source.input is not None else None
        statistics = normalisation(settings, data, weights_input)
        preprocess = Preprocessing(
            spec.image_size,
            1.0,
            (weights_input or timm_preprocessing(settings.model)).interpolation,
            *(statistics.mean, statistics.std, images.decode_options.value_range, settings.resize),
            images.decode_options.channel_ranges,
        )
        card = RegressionCard(spec, (column,), preprocess)
        load_report = load_initial_weights(weights_source, settings.model, objective, (), "fresh")
        if linear_classifier(objective.deployable()) is None:
            raise UserError(
                f"--model: {settings.model} has no linear classifier as its last layer, which regression needs: choose "
                "another model."
            )
        remarks += [
            *images.notes,
            *(() if settings.ordinal else grades_note(targets, column)),
            *(load_report.lines() if load_report else ()),
            *notes,
        ]
        return RegressionSetup(
            settings=settings,
            origins=list_origins(settings, origins, reasons),
            data=data,
            plan=Plan(0, 1, seed=settings.seed, hardware=training_hardware),
            objective=objective,
            card=card,
            remarks=tuple(remarks),
            load_report=load_report,
        )

    def describe_images(self, setup: RegressionSetup) -> str:
        """Return the name of the data, the number of images, and the range of the target."""
        images = setup.data.images
        return f"{images.name}, {len(images)} images; {setup.settings.target}: {describe_targets(setup.data.targets)}"

    def write_beginning(self, run: RunFolder, setup: RegressionSetup) -> None:
        """Do nothing: no network is trained, so there is no training batch to draw."""

    def draw_batch(self, setup: RegressionSetup) -> Image.Image:
        """Raise an error: there is no training batch to draw."""
        _refuse_training()

    def loader(self, setup: RegressionSetup, first_pass: int) -> Any:
        """Raise an error: no network is trained, so there is no training loader."""
        _refuse_training()

    def optimization(self, setup: RegressionSetup) -> Optimization:
        """Raise an error: no network is trained, so there is no optimizer."""
        _refuse_training()

    def conclude(
        self, run: RunFolder, setup: RegressionSetup, outcome: Outcome, listener: EpochListener, console: Any
    ) -> RegressionResult:
        """Fit the regression to the training images, and evaluate the model once on the test images."""
        start_time, settings, data = time.monotonic(), setup.settings, setup.data
        network, train = setup.objective.deployable().to(settings.device), data.split_indices("train")
        size, preprocess = setup.card.backbone.image_size, setup.card.preprocessing
        has_maps, truth, grades = bool(last_stage_poolings(network, size)), data.targets[train], None
        with console.progress("features") as advance:
            features = compute_frozen_features(network, data, train, preprocess, settings, advance, staged=has_maps)
        features = features.double().numpy()
        network, fitted, reads_stages = _fit_best_ridge(network.cpu(), size, features, truth, settings.seed)
        if settings.ordinal:
            lowest, highest = int(data.targets.min()), int(data.targets.max())
            grades, half_width = fit_grades(truth + fitted.residuals, truth, lowest, highest)
        else:
            half_width = conformal_half_width(fitted.residuals, INTERVAL_LEVEL)
        statistics = {"mean": float(truth.mean()), "deviation": float(truth.std()) or 1.0}
        card = replace(setup.card, half_width=half_width, **statistics, grades=grades, reads_stages=reads_stages)
        save_trained(run, network, card)
        model, part = TrainedModel(*load_saved(run, RegressionCard, settings.device)), data.split_indices("test")
        truth, groups = data.targets[part], data.split.groups
        with console.progress("testing") as advance:
            loader = eval_loader(data, part, model.card.preprocessing, settings)
            report, predicted = evaluate_regression(model, loader, truth, part, settings.seed, advance, groups)
        write_scores(run.evaluation("test"), run.plots, report, data.images, part, truth, predicted)
        seconds = time.monotonic() - start_time
        mae, interval = format_regression_score(report.scores["mae"], "mae")
        gain, gain_interval = format_regression_score(report.gain, "gain")
        line = (
            f"test MAE of {settings.target}: {mae} ({interval_text(interval, report)}); always predicting "
            f"the mean: {report.baseline:.3g}, so {gain} less{f' ({gain_interval})' if gain_interval else ''}"
        )
        path = shlex.quote(str(run.path))
        steps = [
            f"paucal predict {path} new_images/     # predict values for new images, with 90 % intervals",
            f"paucal eval {path} more.csv     # evaluate the model on other images",
        ]
        summary, files = _summary(setup, fitted, report, seconds), "plots/predicted.png"
        summary["next_steps"] = steps
        publish_results(run, console, summary, write_regression_report, [line], files, steps, report_table(report))
        return RegressionResult(run.path, report, seconds)


def _refuse_training() -> NoReturn:
    raise NotImplementedError("a regression on frozen features trains no network")
