"""Assembly of a pre-training run from its settings and its images, with the crops that the run compares."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import timm

from paucal.backbones.layout import Size
from paucal.backbones.spec import BackboneSpec
from paucal.backbones.weights.checkpoints import WeightsPreprocessing, timm_preprocessing
from paucal.data.channels.pixel_format import describe_channels
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.data.sources.tables import hold_out_listed_images
from paucal.data.splits.split import Split, held_out_part
from paucal.data.views.multi_crop import BLUR, build_crop_transforms
from paucal.data.views.normalisation import Normalisation
from paucal.methods.pretraining import method_of, resolve_pretraining
from paucal.methods.pretraining_settings import CropSettings, PretrainSettings
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
from paucal.runner.initial_weights import WeightsSource, find_initial_weights, load_initial_weights
from paucal.runner.job import Bars, RunSetup
from paucal.runner.resuming import stored_split
from paucal.runner.trainer_plan import (
    check_memory,
    check_rates,
    hardware,
    length_warnings,
    seeded_random_weights,
    trainer_plan,
)
from paucal.runs import RunFolder
from paucal.settings.options import MAX_SIDE, flag, list_origins
from paucal.tasks.pretraining.monitor import Monitor, open_monitor
from paucal.training import checkpoint_rows
from paucal.types import Crops, UserError, height_and_width
from paucal.wording import counted

ESVIT_PREFIX = "esvit_"  # added to timm's name of a Swin to name EsViT's variant of the network


@dataclass(frozen=True)
class PretrainingSetup(RunSetup[PretrainSettings]):
    """The checked inputs of a pre-training run, before anything is written."""

    monitor: Monitor | None = None  # scores the backbone on labelled images; None if `--monitor` is not given

    @property
    def statistics(self) -> Normalisation:
        """Mean and standard deviation that normalise the images."""
        return self.card.preprocessing.normalisation

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
    if facts.n_train < method.min_images:
        raise UserError(
            f"there is only {facts.n_train} image, but {settings.method} compares several images: give more images."
        )
    if facts.n_train < settings.effective_batch:
        raise UserError(
            f"a step needs {counted(settings.effective_batch, 'image')}, but there are {facts.n_train}: give a smaller "
            "--batch-size, or more images."
        )
    epochs_done = len(checkpoint_rows(run.last)) if run else 0
    objective, spec, notes = _build_objective(
        method.stage_settings(settings, epochs_done), images.decode_options.channels
    )
    timm_model = timm_name(settings.model)  # timm's name of the published weights
    weights_input = (weights_source.input or timm_preprocessing)(timm_model)
    card = ModelCard(spec, (), _load_or_make_preprocessing(settings, data, weights_input, run))
    # Raises an error if crop settings are invalid.
    make_crop_transforms(settings, card.preprocessing.normalisation)
    monitor = open_monitor(settings, card.preprocessing)
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
    """Open the images, choose the unset settings with their reasons, and decode the images at the chosen size.

    Settings that depend on the number of images are chosen again after unreadable images were skipped.
    """
    with bars("looking through shards") as advance:
        undecoded = load_unlabelled(settings, advance)
    base_options = initial_decode_options(settings, undecoded, stored_decode_options(run))
    undecoded_data = SplitImages(undecoded, _split_images(undecoded))
    first_facts = replace(undecoded_data.facts(), initial_weights=weights_source.facts)
    first_settings, _ = resolve_pretraining(settings, first_facts)
    hardware(first_settings)  # raises an error for a missing device before images are decoded
    decode_options = decode_options_for_size(first_settings.img_size, base_options)
    with bars("reading images") as advance:
        images = decode_images(undecoded, settings, decode_options, advance)
    data = SplitImages(images, _split_images(images) if run is None else stored_split(run, images))
    facts = replace(data.facts(), initial_weights=weights_source.facts)
    settings, reasons = resolve_pretraining(settings, facts)
    decode_options = decode_options_for_size(settings.img_size, images.decode_options)
    if settings.img_size is not None and decode_options.side != images.decode_options.side:
        data = replace(data, images=decode_images(images, settings, decode_options))
    return data, facts, settings, reasons


def _build_objective(settings: PretrainSettings, channels: int) -> tuple[Objective, BackboneSpec, list[str]]:
    groups = make_crop_groups(settings, height_and_width(settings.img_size))
    with seeded_random_weights(settings.seed):
        spec, notes = backbone_spec(settings, 0, channels)
        pixels = [math.prod(group.sides or ()) for group in groups]
        # Number of pixels in all crops of an image, divided by the number of pixels in a global crop.
        relative_pixels = sum(group.count * area for group, area in zip(groups, pixels, strict=True)) / pixels[0]
        notes = [*check_memory(settings, spec, relative_pixels), *notes]
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
    statistics, size = normalisation(settings, data, weights_input), height_and_width(settings.img_size)
    decode_options, esvit = data.images.decode_options, WeightsPreprocessing()
    return Preprocessing(
        size,
        1.0 if min(size) <= SMALL_SIDE or settings.resize != "crop" else esvit.crop_ratio,
        esvit.interpolation,
        *(statistics.mean, statistics.std, decode_options.value_range, settings.resize, decode_options.channel_ranges),
    )


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
    """Return timm's name of a Swin variant that EsViT builds; other names are returned unchanged."""
    is_esvit_swin = name.startswith(f"{ESVIT_PREFIX}swin_") and name in timm.list_models()
    return name.removeprefix(ESVIT_PREFIX) if is_esvit_swin else name


def make_crop_groups(settings: CropSettings, size: Size) -> list[Crops]:
    """Return the global crops, which have the given size, and then one group of local crops per local size."""
    counts, sizes = settings.local_crops, settings.local_size
    if len(counts) != len(sizes) and sum(counts):
        raise UserError(
            f"--local-crops has {len(counts)} numbers and --local-size has {len(sizes)}: give a number of crops for "
            "each size."
        )
    scale = _scale_range("global_scale", settings.global_scale)
    local_scale = _scale_range("local_scale", settings.local_scale)
    groups = [Crops(settings.global_crops, size, scale)]
    groups += [Crops(count, side, local_scale) for count, side in zip(counts, sizes, strict=False) if count]
    if settings.global_crops < 1 or sum(group.count for group in groups) < 2:
        raise UserError(
            f"--global-crops {settings.global_crops} and --local-crops {sum(counts)} give no pair of crops to compare: "
            "use 2 crops or more, at least one of which is global."
        )
    return groups


def make_crop_transforms(settings: PretrainSettings, statistics: Normalisation):
    """Return a (transform, number of crops) pair per crop group; raise a UserError for invalid crops or blur radii."""
    size = height_and_width(settings.img_size)
    groups, blur = make_crop_groups(settings, size), BLUR
    if settings.blur is not None:
        blur = tuple(settings.blur)
    if len(blur) != 2 or not 0 <= blur[0] <= blur[1] <= MAX_SIDE:
        raise UserError(
            f"--blur is {settings.blur}; expected the smallest and the largest radius in pixels, such as 0.1 2.0."
        )
    return build_crop_transforms(
        settings.pipeline, groups, statistics, size, blur, settings.hflip, resize=settings.resize
    )


def describe_crops(settings: PretrainSettings) -> str:
    """Return the crops as text, such as "2 crops of 224x224 and 8 crops of 96x96"."""
    groups = make_crop_groups(settings, height_and_width(settings.img_size))
    return " and ".join(
        f"{counted(group.count, 'crop')} of {'x'.join(map(str, group.sides or ()))}" for group in groups
    )


def _scale_range(name: str, values: list[float] | None) -> tuple[float, float]:
    if values is None or len(values) != 2 or not 0 < values[0] <= values[1] <= 1:
        raise UserError(
            f"{flag(name)} is {values}; expected two fractions of the area, smallest and largest, such as 0.4 1.0."
        )
    return values[0], values[1]
