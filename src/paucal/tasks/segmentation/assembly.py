"""Assemble a segmentation run: open images and masks, choose the settings, and build the network."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paucal.backbones.layout import Size
from paucal.backbones.weights.checkpoints import WeightsPreprocessing, timm_preprocessing
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import stored_card
from paucal.objectives.finetuning import FineTuning
from paucal.rules.resolve import backbone_spec, resolve
from paucal.runner.images import normalisation
from paucal.runner.initial_weights import (
    choose_initial_weights,
    chooses_initial_weights,
    find_initial_weights,
    load_initial_weights,
)
from paucal.runner.job import Bars, RunSetup
from paucal.runner.trainer_plan import (
    check_memory,
    check_rates,
    hardware,
    seeded_random_weights,
    trainer_plan,
    with_synced_norms,
)
from paucal.runs import RunFolder
from paucal.runs.folder import CHOSEN_WEIGHTS
from paucal.settings.options import list_origins
from paucal.tasks.segmentation.crops import CropOptions
from paucal.tasks.segmentation.images import SegmentationData, open_segmentation_data
from paucal.tasks.segmentation.model import HeadOptions, SegmentationCard
from paucal.tasks.segmentation.objective import PixelObjective
from paucal.tasks.segmentation.rules import RULES
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.tasks.segmentation.windows import WindowOptions
from paucal.types import UserError, height_and_width
from paucal.wording import counted, join_first_few

WARMUP_FRACTION = 0.05  # default length of the warm-up, as a fraction of the epochs


@dataclass(frozen=True)
class SegmentationSetup(RunSetup[SegmentSettings]):
    """The checked inputs of a segmentation run, before anything is written."""

    data: SegmentationData
    card: SegmentationCard

    def describe(self) -> str:
        """Return one line with the backbone, the head, the parameters and the size of the crops."""
        height, width = self.card.backbone.image_size
        return (
            f"{self.card.backbone.name} with UperNet of width {self.card.head.width}, {self.weights_text}, crops "
            f"{height}x{width}"
        )


def assemble(
    settings: SegmentSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None
) -> SegmentationSetup:
    """Open images and masks, choose the settings that were not given and build the network; write nothing."""
    data = open_segmentation_data(settings, bars, run)
    remarks: list[str] = []
    if run is None:
        if chooses_initial_weights(settings, origins) and (settings.init == CHOSEN_WEIGHTS or settings.recipe is None):
            settings, origins, choice = choose_initial_weights(settings, origins, data.facts().median_side)
            remarks = [choice.remark] if choice.remark else []
        check_rates(settings)
    weights_source = find_initial_weights(settings, run)
    facts = replace(data.facts(), initial_weights=weights_source.facts)
    settings, reasons = resolve(settings, facts, RULES)
    hardware(settings)  # refuses a missing device before the network is built
    if settings.epochs is None and settings.time is None:
        settings, reasons["epochs"] = replace(settings, epochs=50), "the default without --epochs and --time"
    if settings.warmup_epochs is None and settings.epochs is not None:
        settings = replace(settings, warmup_epochs=WARMUP_FRACTION * settings.epochs)
        reasons["warmup_epochs"] = "a twentieth of the epochs"
    card, objective, notes = _build_network(
        settings, data, weights_source.input and weights_source.input(settings.model), run
    )
    load_report = load_initial_weights(weights_source, settings.model, objective, ())
    min_crops = objective.data_request.smallest_batch
    if settings.batch_size_or_1 < min_crops:
        raise UserError(
            f"--batch-size is {settings.batch_size_or_1}, but the head's batch norms need at least {min_crops} crops "
            "in a forward pass: give a larger --batch-size, and remove --accumulate."
        )
    remarks += [*data.images.notes, *(load_report.lines() if load_report else ()), *notes, *_mask_warnings(data)]
    plan = trainer_plan(settings, facts.n_train * settings.crops)
    origins = list_origins(settings, origins, reasons)
    return SegmentationSetup(settings, origins, data, plan, objective, card, tuple(remarks), load_report)


def _build_network(
    settings: SegmentSettings, data: SegmentationData, weights_input: WeightsPreprocessing | None, run: RunFolder | None
) -> tuple[SegmentationCard, PixelObjective, list[str]]:
    """Return the model card, the objective and notes on the backbone."""
    with seeded_random_weights(settings.seed):
        spec, notes = backbone_spec(settings, 0)
        # The head needs about as much memory as the backbone.
        notes = [*check_memory(settings, spec, views=2.0), *notes]
        if stored := stored_card(run, SegmentationCard):
            preprocessing = stored.preprocessing
        else:
            statistics = normalisation(settings, data, weights_input or timm_preprocessing(settings.model))
            mean, std, value_range = statistics.mean, statistics.std, data.images.decode_options.value_range
            preprocessing = Preprocessing(height_and_width(settings.img_size), 1.0, "bilinear", mean, std, value_range)
        card = SegmentationCard(
            backbone=spec,
            classes=data.images.classes,
            preprocessing=preprocessing,
            head=HeadOptions(settings.width, settings.dropout),
            coding=data.masked.coding,
            overlap=settings.overlap,
            whole=settings.test_mode == "whole",
            resize_to=_resize_sides(settings),
        )
        network = with_synced_norms(settings, card.build(drop_path_rate=settings.drop_path))
        if settings.test_mode == "whole" and (size := network.maps.fixed_size) is not None:
            raise UserError(
                f"--test-mode is whole, but {settings.model} only takes images of {size[0]}x{size[1]} pixels: use "
                "--test-mode windows, or a model that takes any size, such as a Swin or a ResNet."
            )
        tuning, width = fine_tuning(settings), settings.auxiliary_width
        objective = PixelObjective(network, settings.auxiliary, tuning, settings.backbone_lr, width, settings.dropout)
        objective.auxiliary = objective.auxiliary and with_synced_norms(settings, objective.auxiliary)
        return card, objective, notes


def fine_tuning(settings: SegmentSettings) -> FineTuning:
    """Return the options of fine-tuning the backbone."""
    if settings.eval_mode and settings.init is None:
        raise UserError(
            "--eval-mode keeps the running statistics of pretrained weights, but this run starts from random "
            "weights: give --init, or remove --eval-mode."
        )
    freeze = None if settings.freeze == "none" else settings.freeze
    return FineTuning(settings.layer_decay, freeze, settings.freeze_epochs, settings.eval_mode)


def crop_options(settings: SegmentSettings) -> CropOptions:
    """Return the sizes and the augmentation of training crops."""
    low, high = settings.scale
    return CropOptions(
        size=height_and_width(settings.img_size),
        scale=(low, high),
        hflip=settings.hflip,
        vflip=settings.vflip,
        colour=settings.colour,
        resize_to=_resize_sides(settings),
    )


def fast_inference_options(settings: SegmentSettings) -> WindowOptions:
    """Return the inference options of the validation after each epoch: windows without overlap, at one scale."""
    return replace(final_inference_options(settings), overlap=0.0, scales=(1.0,), mirror=False)


def final_inference_options(settings: SegmentSettings) -> WindowOptions:
    """Return the inference options of the evaluation on the test images."""
    return WindowOptions(
        height_and_width(settings.img_size),
        settings.overlap,
        settings.test_scales,
        settings.mirror,
        whole=settings.test_mode == "whole",
        resize_to=_resize_sides(settings),
    )


def _resize_sides(settings: SegmentSettings) -> Size | None:
    """Return the maximum shorter and longer side to which images are resized; None if images are not resized."""
    return (min(settings.resize_to), max(settings.resize_to)) if settings.resize_to else None


def _mask_warnings(data: SegmentationData) -> list[str]:
    """Return warnings about the masks, and about classes that have no pixel in the training or in the test masks."""
    remarks = data.masked.describe_findings()
    for part, purpose in (("train", "training"), ("test", "test")):
        pixels = data.masked.class_pixel_counts[data.split_indices(part)].sum(0)
        missing = [name for name, count in zip(data.images.classes, pixels, strict=True) if count == 0]
        if missing:
            examples = join_first_few(missing, 8)
            remarks.append(f"{counted(len(missing), 'class', 'classes')} without a {purpose} pixel: {examples}")
    return remarks
