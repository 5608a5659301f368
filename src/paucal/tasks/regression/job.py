"""`paucal train --target`: a number for each image, by ridge regression on frozen features."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from PIL import Image

from paucal.backbones.spec import BackboneSpec
from paucal.backbones.weights.inputs import input_of_timm
from paucal.methods.training import resolve_training
from paucal.methods.training_settings import TrainSettings
from paucal.models.features import linear_classifier
from paucal.models.preprocessing import Preprocessing
from paucal.models.regression import RegressionCard
from paucal.rules.backbone import backbone_spec
from paucal.rules.resolve import origins
from paucal.runner.images import decoded, find_images, first_reading, normalisation, pin_data, reading_for
from paucal.runner.job import Bars, Job, Watcher
from paucal.runner.memory_check import check_memory
from paucal.runner.starts import TINY, choose_start, find_start, load_start, may_choose_start, pin_start, plain_init
from paucal.runner.trainer_inputs import hardware
from paucal.runs import RunFolder
from paucal.settings.options import check_ranges, flag
from paucal.tasks.regression.conclusion import RegressionResult, conclude
from paucal.tasks.regression.images import (
    NumberedImages,
    RegressionSetup,
    describe_numbers,
    grades_note,
    require_grades,
    split_numbers,
    with_numbers,
)
from paucal.tasks.regression.model import FrozenNetwork
from paucal.training import Optimization, Outcome, Plan
from paucal.types import UserError

# Settings that a regression has; the others are those of training a network.
USED = (
    *("data", "data_root", "download", "on_bad_image", "image_column", "channels", "target", "model", "init"),
    *("img_size", "normalise", "resize", "device", "workers", "seed", "output", "overwrite", "logger", "epochs"),
    *("test_fraction", "group_by", "fold", "split", "precision", "ordinal", "print_config"),
)


class RegressionJob(Job[TrainSettings, RegressionSetup, RegressionResult]):
    """A regression on frozen features of trained weights."""

    verb = "train"
    kind = TrainSettings
    reads = ("data", "data_root", "init", "split")

    def check(self, settings: TrainSettings, given: Mapping[str, str]) -> tuple[TrainSettings, dict[str, str]]:
        """Refuse settings without effect."""
        unused = [name for name in given if name not in USED]
        if unused or settings.epochs not in (None, 0):
            name = unused[0] if unused else "epochs"
            raise UserError(
                f"{flag(name)} is not supported with --target, which fits a ridge regression to frozen features and "
                "trains no network: leave it out."
            )
        check_ranges(settings)
        return replace(plain_init(settings), epochs=0, method="supervised"), dict(given)

    def pin(self, settings: TrainSettings) -> TrainSettings:
        """Return settings with absolute paths."""
        return pin_start(pin_data(settings, {"split"}))

    def assemble(
        self, settings: TrainSettings, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> RegressionSetup:
        """Open the images and their numbers, choose the weights and build the network."""
        assert settings.target is not None
        column: str = settings.target
        with bars("looking through images") as advance:
            images, targets = with_numbers(find_images(settings, labelled=False, advance=advance), column)
        if settings.ordinal:
            require_grades(targets, column)
        data = NumberedImages(images, split_numbers(settings, images, run), targets=targets)
        remarks: list[str] = []
        if run is None and may_choose_start(settings, given):
            side = max(data.facts().median_side, TINY)  # tiny images are enlarged, since only the regression is trained
            settings, given, choice = choose_start(settings, given, side)
            remarks = [choice.remark] if choice.remark else []
        start = find_start(settings, run)
        if start.read is None and start.record is None:
            raise UserError("--target needs trained weights, and none were found: give --init timm, a file or a run.")
        facts = replace(data.facts(), n_classes=1, start=start.facts)
        settings, reasons = resolve_training(settings, facts)
        if run is None and "resize" not in given:
            settings, reasons["resize"] = replace(settings, resize="squash"), "a number is of the whole image"
        reading = reading_for(settings.img_size, first_reading(settings, images))
        with bars("reading images") as advance:
            images = decoded(images, settings, reading, advance)
        if len(images) < len(targets):  # unreadable images were skipped
            images, targets = with_numbers(images, column)
            data = NumberedImages(images, split_numbers(settings, images, run), targets=targets)
        data = replace(data, images=images)
        objective, spec, notes = _build_network(settings, images.reading.channels)
        tested = start.input(settings.model) if start.input is not None else None
        statistics = normalisation(settings, data, tested)
        preprocess = Preprocessing(
            spec.image_size,
            1.0,
            (tested or input_of_timm(settings.model)).interpolation,
            statistics.mean,
            statistics.std,
            images.reading.value_range,
            settings.resize,
            images.reading.channel_ranges,
        )
        card = RegressionCard(spec, (column,), preprocess)
        load_report = load_start(start, settings.model, objective, (), "fresh")
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
        plan = Plan(0, 1, seed=settings.seed, hardware=hardware(settings))
        origin = origins(settings, given, reasons)
        return RegressionSetup(settings, origin, data, plan, objective, card, tuple(remarks), load_report)

    def describe_images(self, setup: RegressionSetup) -> str:
        """Return the name of the data, the number of images, and the range of the target."""
        images = setup.data.images
        return f"{images.name}, {len(images)} images; {setup.settings.target}: {describe_numbers(setup.data.targets)}"

    def write_beginning(self, run: RunFolder, setup: RegressionSetup) -> None:
        """Write nothing more: no network is trained, so there is no batch to draw."""

    def draw_batch(self, setup: RegressionSetup) -> Image.Image:
        """Raise an error: there is no training batch to draw."""
        _refuse_training()

    def loader(self, setup: RegressionSetup, start: int) -> Any:
        """Raise an error: no network is trained, so there is no training loader."""
        _refuse_training()

    def optimization(self, setup: RegressionSetup) -> Optimization:
        """Raise an error: no network is trained, so there is no optimizer."""
        _refuse_training()

    def conclude(
        self, run: RunFolder, setup: RegressionSetup, outcome: Outcome, watcher: Watcher, console: Any
    ) -> RegressionResult:
        """Fit the regression, evaluate it on the test images and write the results."""
        return conclude(run, setup, console)


def _refuse_training() -> NoReturn:
    raise NotImplementedError("a regression on frozen features trains no network")


def _build_network(settings: TrainSettings, channels: int) -> tuple[FrozenNetwork, BackboneSpec, list[str]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        spec, notes = backbone_spec(settings, 1, channels)
        notes = [*check_memory(settings, spec), *notes]
        return FrozenNetwork(spec.build()), spec, notes
