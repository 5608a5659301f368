"""Assembly of a pre-training run from its settings and its images."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import timm

from paucal.backbones.spec import BackboneSpec
from paucal.backbones.weights.inputs import WeightsPreprocessing, timm_preprocessing
from paucal.data.channels.pixel_format import describe_channels
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.data.sources.tables import hold_out_listed_images
from paucal.data.splits.split import Split, held_out_part
from paucal.data.views.normalisation import Normalisation
from paucal.methods.pretraining import method_of, resolve_pretraining
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.objectives import Objective
from paucal.rules.resolve import DataAndMachine, backbone_spec
from paucal.rules.training import SMALL_SIDE
from paucal.runner.images import (
    Advance,
    SplitImages,
    decode_images,
    decode_options_for_size,
    initial_decode_options,
    normalisation,
    stored_decode_options,
    stored_preprocessing,
)
from paucal.runner.job import Bars, RunSetup
from paucal.runner.resuming import stored_split
from paucal.runner.starts import WeightsSource, find_initial_weights, load_initial_weights
from paucal.runner.trainer_inputs import (
    check_memory,
    check_rates,
    hardware,
    length_warnings,
    seeded_random_weights,
    trainer_plan,
)
from paucal.runs import RunFolder
from paucal.settings.options import list_origins
from paucal.tasks.pretraining.crops import describe_crops, make_crop_groups, make_crop_transforms, relative_pixels
from paucal.tasks.pretraining.monitor import Monitor, knn_monitor
from paucal.tasks.pretraining.stages import epochs_done
from paucal.types import UserError, height_and_width
from paucal.wording import counted

ESVIT_PREFIX = "esvit_"  # added to timm's name of a Swin to name EsViT's variant of the network


@dataclass(frozen=True)
class PretrainingSetup(RunSetup[PretrainSettings]):
    """The checked inputs of a pre-training run, before anything is written.

    Attributes:
        monitor: Function that scores the backbone on labelled images; None if `--monitor` is not given.
    """

    monitor: Monitor | None = None

    def describe(self) -> str:
        """Return one line: the backbone's name and parameters, the crops, the last feature grid and the method."""
        crops, title = describe_crops(self.settings), method_of(self.settings).title(self.settings)
        return f"{self.card.backbone.name}, {self.weights_text}, {crops}, grid {self.grid_text}; {title}"


def assemble(
    settings: PretrainSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None
) -> PretrainingSetup:
    """Open the images, choose the settings that were not given and build the objective; no file is written."""
    weights_source = find_initial_weights(settings, run)
    data, facts, settings, reasons = _open_and_resolve(settings, bars, run, weights_source)
    images = data.images
    if run is None:
        check_rates(settings)
    settings, renamed = with_esvit_padding(settings)
    method = method_of(settings)
    method.check(settings)
    _check_images(settings, facts.n_train, method.min_images)
    objective, spec, notes = _build_objective(
        method.stage_settings(settings, epochs_done(run)), images.decode_options.channels
    )
    timm_model = timm_name(settings.model)  # timm's name of the published weights
    card = ModelCard(
        spec,
        (),
        _load_or_make_preprocessing(settings, data, (weights_source.input or timm_preprocessing)(timm_model), run),
    )
    # Raises an error if crop settings are invalid.
    make_crop_transforms(settings, Normalisation(card.preprocessing.mean, card.preprocessing.std))
    monitor = open_monitor(settings, card)
    load_report = load_initial_weights(weights_source, timm_model, objective, ())
    remarks = [
        *images.notes,
        *filter(None, [describe_channels(images.decode_options.channels)]),
        *renamed,
        *length_warnings(settings, facts.n_train),
        *(load_report.lines() if load_report else ()),
        *notes,
    ]
    return PretrainingSetup(
        settings=settings,
        origins=list_origins(settings, origins, reasons),
        data=data,
        plan=trainer_plan(settings, facts.n_train),
        objective=objective,
        card=card,
        remarks=tuple(remarks),
        load_report=load_report,
        monitor=monitor,
    )


def _open_and_resolve(
    settings: PretrainSettings, bars: Bars, run: RunFolder | None, weights_source: WeightsSource
) -> tuple[SplitImages, DataAndMachine, PretrainSettings, dict[str, str]]:
    """Open the images, choose the unset settings, and decode the images at the chosen size.

    Returns the images with their split, facts about them, the settings, and the reason for each chosen setting.
    Settings that depend on the number of images are chosen again after unreadable images were skipped.
    """
    with bars("looking through shards") as advance:
        undecoded = load_unlabelled(settings, advance)
    base_reading = initial_decode_options(settings, undecoded, stored_decode_options(run))
    undecoded_data = SplitImages(undecoded, _split_images(undecoded))
    first_facts = replace(undecoded_data.facts(), initial_weights=weights_source.facts)
    first_settings, _ = resolve_pretraining(settings, first_facts)
    hardware(first_settings)  # raises an error for a missing device before images are decoded
    with bars("reading images") as advance:
        images = decode_images(
            undecoded, settings, decode_options_for_size(first_settings.img_size, base_reading), advance
        )
    data = SplitImages(images, _split_images(images) if run is None else stored_split(run, images))
    facts = replace(data.facts(), initial_weights=weights_source.facts)
    settings, reasons = resolve_pretraining(settings, facts)
    if settings.img_size is not None and decode_options_for_size(settings.img_size).side != images.decode_options.side:
        data = replace(
            data,
            images=decode_images(images, settings, decode_options_for_size(settings.img_size, images.decode_options)),
        )
    return data, facts, settings, reasons


def _build_objective(settings: PretrainSettings, channels: int) -> tuple[Objective, BackboneSpec, list[str]]:
    groups = make_crop_groups(settings, height_and_width(settings.img_size))
    with seeded_random_weights(settings.seed):
        spec, notes = backbone_spec(settings, 0, channels)
        notes = [*check_memory(settings, spec, relative_pixels(groups)), *notes]
        return method_of(settings).build(settings, spec, groups), spec, notes


def _load_or_make_preprocessing(
    settings: PretrainSettings, data: SplitImages, weights_input: WeightsPreprocessing, run: RunFolder | None
) -> Preprocessing:
    """Return the preprocessing stored in the run; for a new run, build it from the settings.

    `weights_input` is the input that the pretrained weights expect; only its mean and standard deviation are used. The
    crop ratio and the interpolation are always EsViT's, since the run trains on EsViT's crops.
    """
    stored = stored_preprocessing(run)
    if stored is not None:
        return stored
    statistics = normalisation(settings, data, weights_input)
    size = height_and_width(settings.img_size)
    ratio = 1.0 if min(size) <= SMALL_SIDE or settings.resize != "crop" else WeightsPreprocessing().crop_ratio
    reading, interpolation = data.images.decode_options, WeightsPreprocessing().interpolation
    chosen_input = Preprocessing(size, ratio, interpolation, statistics.mean, statistics.std, reading.value_range)
    return replace(chosen_input, channel_ranges=reading.channel_ranges, resize=settings.resize)


def load_unlabelled(settings: PretrainSettings, advance: Advance | None = None) -> ImageSet:
    """Open the images of `--data` without labels and without reading pixels; folders are searched to any depth.

    Images that are named in a folder's lists of test images are declared as test images.
    """
    root = settings.data_root
    images = open_images(
        settings.data,
        labelled=False,
        image_column=settings.image_column,
        root=root,
        download=settings.download,
        progress=advance,
    )
    folder = Path(settings.data).expanduser()
    if images.location == str(folder.resolve()) and folder.is_dir():
        images = hold_out_listed_images(images, folder, None if root is None else Path(root).expanduser())
    return images


def open_monitor(settings: PretrainSettings, card: ModelCard) -> Monitor | None:
    """Return the nearest-neighbour monitor on the labelled images of `--monitor`; None if `--monitor` is not given."""
    if settings.monitor is None:
        return None
    return knn_monitor(
        settings.monitor,
        card.preprocessing,
        max_images=settings.monitor_images,
        seed=settings.seed,
        workers=settings.workers,
        on_bad_image=settings.on_bad_image,
        device=settings.device,
        data_root=settings.data_root,
    )


def _split_images(images: ImageSet) -> Split:
    """Put all images into the split "train", except images that `paucal train` would use as test images."""
    part = held_out_part(images.declared_splits)
    held_out = np.asarray([bool(part) and declared == part for declared in images.declared_splits])
    parts = np.where(held_out, "unused", "train").astype("<U6")
    reason = ", reserved for testing," if part == "val" else ""
    n_held_out, text = int(held_out.sum()), "all images are used"
    if n_held_out:
        verb = "is" if n_held_out == 1 else "are"
        text = f"the {counted(n_held_out, 'image')} of the declared {part} part{reason} {verb} left out"
    return Split(parts, f"{text}; labels are not used")


def _check_images(settings: PretrainSettings, n_train: int, min_images: int) -> None:
    """Raise a UserError if there are fewer training images than the method or a training step needs."""
    if n_train < min_images:
        raise UserError(
            f"there is only {n_train} image, but {settings.method} compares several images: give more images."
        )
    if n_train < settings.effective_batch:
        raise UserError(
            f"a step needs {counted(settings.effective_batch, 'image')}, but there are {n_train}: give a smaller "
            "--batch-size, or more images."
        )


def with_esvit_padding(settings: PretrainSettings) -> tuple[PretrainSettings, list[str]]:
    """Return settings that build a Swin as EsViT does, and a note; settings of other models are returned unchanged.

    EsViT pads the feature map before shifting the windows; crops of 96 pixels need this padding. The weights have
    timm's names and shapes, so timm's Swin can load them.
    """
    name = f"{ESVIT_PREFIX}{settings.model}"
    if timm_name(name) == name:
        return settings, []
    model = settings.model
    note = f"{model} is built as {name}, which pads before it shifts windows; timm's {model} loads its weights"
    return replace(settings, model=name), [note]


def timm_name(name: str) -> str:
    """Return timm's name of a Swin variant that EsViT builds; other names are returned unchanged.

    Example:
        >>> timm_name("esvit_swin_tiny_patch4_window7_224"), timm_name("esvit_cvt_tiny")
        ('swin_tiny_patch4_window7_224', 'esvit_cvt_tiny')
    """
    is_esvit_swin = name.startswith(f"{ESVIT_PREFIX}swin_") and name in timm.list_models()
    return name.removeprefix(ESVIT_PREFIX) if is_esvit_swin else name
