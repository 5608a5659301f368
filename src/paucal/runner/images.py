"""Open, decode, preprocess and load the images of a run."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from paucal.backbones.weights.checkpoints import WeightsPreprocessing, timm_preprocessing
from paucal.cores import count_usable_cores
from paucal.data.channels.pixel_format import count_channels, measure_value_ranges
from paucal.data.channels.pixels import RGB
from paucal.data.classes import choose_classes
from paucal.data.dataset import collate
from paucal.data.decode import DEFAULT_DECODE_OPTIONS, DecodeOptions
from paucal.data.decoded.prepare import prepare_images, stored_side
from paucal.data.images import ImageSet, without_decoded_copies
from paucal.data.loader import TrainLoader, inference_batch_size, make_eval_loader, make_train_loader
from paucal.data.maps.reader import LabelMaps, MapReader
from paucal.data.named.table import data_root, is_published_set
from paucal.data.sampler import StepSampler
from paucal.data.shards.folders import is_remote
from paucal.data.shards.stream import ShardPrefetcher
from paucal.data.sources.joining import SEPARATOR, split_location
from paucal.data.sources.labels import is_missing
from paucal.data.sources.opening import BUILT_IN, open_images
from paucal.data.splits.split import Split
from paucal.data.views.normalisation import Normalisation, compute_normalisation
from paucal.distributed import rank, world_size
from paucal.evaluation.predictions import predict_in_order
from paucal.evaluation.results import PrimaryMetric, primary_metric
from paucal.models.features import ClassifierInputExtractor, StageClassifierInputExtractor
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import stored_card
from paucal.rules.resolve import DataAndMachine, best_device
from paucal.runner.processes import launched_process_counts
from paucal.runs import RunFolder
from paucal.settings.shared import DataSettings, JobSettings, LabelledDataSettings
from paucal.types import UserError

if TYPE_CHECKING:
    from paucal.training import Plan

Advance = Callable[[int, int], None]  # takes the numbers of finished and of all items
D = TypeVar("D", bound=DataSettings)


@dataclass(frozen=True)
class SplitImages:
    """The images of a run with their split, and with label maps if the method needs label maps."""

    images: ImageSet
    split: Split
    label_maps: MapReader | None = None

    @property
    def primary_metric(self) -> PrimaryMetric:
        """The metric by which models are selected on the validation images."""
        return primary_metric(self.images.multi_hot is not None)

    def split_indices(self, name: str) -> NDArray[np.int64]:
        """Return the indices of the images in a split: "train", "val" or "test"."""
        return self.split.indices(name)

    def counts(self) -> dict[str, int]:
        """Return the number of images in each split."""
        return {name: len(self.split_indices(name)) for name in ("train", "val", "test")}

    def facts(self) -> DataAndMachine:
        """Return the properties of the data and the machine from which settings are chosen automatically."""
        sizes = self.images.sample_sizes()
        device, bf16 = best_device()
        return DataAndMachine(
            n_train=len(self.split_indices("train")),
            n_classes=len(self.images.classes),
            median_side=int(np.median(sizes.min(axis=1))),
            hinted_size=self.images.hints.image_size,
            hinted_epochs=self.images.hints.epochs,
            flip=self.images.hints.flip,
            cores=count_usable_cores(),
            device=device,
            bf16=bf16,
            devices=torch.cuda.device_count() if device == "cuda" else 1,
            launched=launched_process_counts(),
            several_labels=self.images.multi_hot is not None,
            n_images=len(self.images),
        )


def with_absolute_data_paths(settings: D, paths: Iterable[str] = ()) -> D:
    """Return settings with absolute paths; `paths` are names of further settings whose values may be paths."""
    changes = {}
    if is_published_set(settings.data, settings.data_root):
        # If the root is stored, the name means the published data set even if a folder of that name is created later.
        changes["data_root"] = str(data_root(settings.data_root))
    elif (
        settings.data != BUILT_IN
        and not is_remote(settings.data)
        and all(Path(path).expanduser().exists() for path in split_location(settings.data))
    ):
        changes["data"] = SEPARATOR.join(map(_absolute_path, split_location(settings.data)))
    if settings.data_root is not None:
        changes["data_root"] = _absolute_path(settings.data_root)
    labelled = isinstance(settings, LabelledDataSettings)
    for name in (*("classes",) * labelled, *paths):
        value = getattr(settings, name)
        if value is not None and Path(value).expanduser().exists():
            changes[name] = _absolute_path(value)
    return replace(settings, **changes)


def _absolute_path(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def decode_options_for_size(
    image_size: Sequence[int] | None, like: DecodeOptions = DEFAULT_DECODE_OPTIONS
) -> DecodeOptions:
    """Return a copy of `like` for an image size (height, width); for the size None, images keep their full size."""
    return replace(like, side=None if image_size is None else stored_side(image_size))


def initial_decode_options(
    settings: DataSettings, images: ImageSet, stored: DecodeOptions | None = None
) -> DecodeOptions:
    """Return the options with which a run first reads its images: `stored` if the run is resumed, else new options.

    The settings name the channels, or else the images determine them.
    """
    if stored is not None:
        return stored
    if settings.channels is not None:
        return DecodeOptions(channels=settings.channels)
    return DecodeOptions(channels=count_channels(images))


def with_run_decode_options(images: ImageSet, settings: DataSettings) -> ImageSet:
    """Return images that will be decoded with the channels and value ranges of a run, without decoding them now."""
    if images.stream is not None:  # reading a sample could download many shards
        return images
    decode_options, _ = measure_value_ranges(initial_decode_options(settings, images), images)
    return images.with_decode_options(decode_options)


def load_images(
    settings: DataSettings,
    advance: Advance | None = None,
    labelled: bool = True,
    decode_options: DecodeOptions = DEFAULT_DECODE_OPTIONS,
) -> ImageSet:
    """Open the images and decode each image once; folders of images without labels may be nested to any depth."""
    return decode_images(open_undecoded(settings, labelled, advance), settings, decode_options, advance)


def decode_images(
    images: ImageSet, settings: DataSettings, decode_options: DecodeOptions, advance: Advance | None = None
) -> ImageSet:
    """Decode each image once, and cache the decoded images if there is space."""
    return prepare_images(
        without_decoded_copies(images), decode_options, on_bad=settings.on_bad_image, progress=advance
    )[0]


def open_undecoded(settings: DataSettings, labelled: bool = True, advance: Advance | None = None) -> ImageSet:
    """Open the images without reading their pixels; `advance` is called with (shards read, shards in total)."""
    has_labels = isinstance(settings, LabelledDataSettings)
    images = open_images(
        settings.data,
        labelled=labelled,
        label_column=settings.label_column if has_labels else None,
        label_separator=settings.label_separator if has_labels else None,
        image_column=settings.image_column,
        root=settings.data_root,
        download=settings.download,
        progress=advance,
        skip_damaged=settings.on_bad_image == "skip",
    )
    if has_labels and settings.classes is not None:
        images = choose_classes(images, settings.classes)
    return images


def with_label_maps(data: SplitImages, labels: str | None, method: str, advance: Advance | None = None) -> SplitImages:
    """Return the data with the label maps of its training images, opened from the folder `labels`."""
    if labels is None:
        raise UserError(
            f"--method {method} learns from label maps: create the maps with 'paucal label' and give --labels."
        )
    maps = LabelMaps(Path(labels).expanduser())
    images, split = data.images, data.split
    trained_keys = set(maps.metadata.trained_on)
    leaked = {part: sum(images.keys[i] in trained_keys for i in split.indices(part)) for part in ("val", "test")}
    if any(leaked.values()):
        advice = "" if leaked["test"] else ", or keep no images for validation (--val-fraction 0)"
        raise UserError(
            f"--labels: the teacher was trained on {sum(leaked.values())} of the images that this run keeps for "
            "validation and test, so the teacher knows their labels: use the teacher's --seed and split, or another "
            f"teacher{advice}."
        )
    return replace(data, label_maps=maps.open_reader(images, data.split_indices("train"), advance))


def open_again(
    run: RunFolder,
    advance: Advance | None = None,
    download: bool = False,
    decode_options: DecodeOptions = DEFAULT_DECODE_OPTIONS,
) -> ImageSet:
    """Open the images of a finished run from their stored location."""
    run_settings = run.settings
    if "data" not in run_settings:
        raise UserError(f"{str(run.config)!r} does not name the run's data: give DATA.")
    names = {item.name for item in fields(LabelledDataSettings)} & run_settings.keys()
    stored_settings = {name: run_settings[name] for name in names}
    data_settings = LabelledDataSettings(**{**stored_settings, "data": str(run_settings["data"]), "download": download})
    target = run_settings.get("target")
    images = load_images(data_settings, advance, labelled=target is None, decode_options=decode_options)
    if target is None:
        return images
    cells = images.columns.get(str(target), ())  # the run left out rows without a target value
    return images.select(np.asarray([row for row, cell in enumerate(cells) if not is_missing(cell)], dtype=np.int64))


def stored_preprocessing(run: RunFolder | None) -> Preprocessing | None:
    """Return the preprocessing of a resumed run; None if no preprocessing is stored yet."""
    card = stored_card(run)
    return None if card is None else card.preprocessing


def stored_decode_options(run: RunFolder | None) -> DecodeOptions | None:
    """Return the options with which a resumed run decodes its images; None if no options are stored yet."""
    preprocessing = stored_preprocessing(run)
    return None if preprocessing is None else preprocessing.decode_options


def normalisation(
    settings: JobSettings, data: SplitImages, weights_input: WeightsPreprocessing | None = None
) -> Normalisation:
    """Return the mean and standard deviation of the training images, of ImageNet, or of the pretrained weights.

    If the images are not RGB, the result is always the mean and standard deviation of the training images.
    """
    if settings.normalise == "computed" or data.images.decode_options.channels != RGB:
        return compute_normalisation(data.images, data.split_indices("train"))
    if settings.normalise == "model":
        image_input = weights_input or timm_preprocessing(settings.model)
        return Normalisation(image_input.mean, image_input.std)
    return Normalisation()


def step_loader(
    dataset: Dataset[Any],
    data: SplitImages,
    settings: JobSettings,
    plan: "Plan",
    first_pass: int,
    repeats: int = 1,
    balanced: bool = False,
    collate_fn: Callable[[list[Any]], Any] = collate,
) -> TrainLoader:
    """Return the training loader of this process, which begins with forward pass `first_pass`."""
    train, stream = data.split_indices("train"), data.images.stream
    sampler = StepSampler(
        train,
        settings.batch_size_or_1,
        plan.most_steps * plan.accumulate,
        settings.seed,
        first_pass,
        rank=rank(),
        world_size=world_size(),
        accumulate=plan.accumulate,
        repeats=repeats,
        labels=data.images.labels[train] if balanced else None,
        stream=stream and stream.take(train),
        on_pass=ShardPrefetcher(data.images.store, train).request_shards
        if stream and is_remote(data.images.location)
        else None,
    )
    return make_train_loader(dataset, sampler, settings.workers, settings.device == "cuda", collate_fn)


def eval_loader(
    data: SplitImages, indices: NDArray[np.int64], preprocess: Preprocessing, settings: JobSettings
) -> DataLoader:
    """Return a loader of the images at `indices`, in this order, preprocessed as for the deployed model."""
    return make_eval_loader(
        data.images,
        indices,
        preprocess.transform(),
        inference_batch_size(preprocess.image_size, settings.device),
        settings.workers,
        rank=rank(),
        world_size=world_size(),
        pin_memory=settings.device == "cuda",
    )


def compute_frozen_features(
    model: nn.Module,
    data: SplitImages,
    indices: NDArray[np.int64],
    preprocess: Preprocessing,
    settings: JobSettings,
    advance: Advance | None = None,
    staged: bool = False,
    autocast: torch.dtype | None = None,
) -> Tensor:
    """Return (N, D) float32 features on the CPU: the inputs of a network's linear classifier for N images.

    The network is moved to the run's device. With `staged`, the pooled feature maps of the last stages are appended,
    see `StageClassifierInputExtractor`. `autocast` is the dtype of mixed precision; None for float32.
    """
    model = model.to(settings.device)
    inputs = StageClassifierInputExtractor(model, preprocess.image_size) if staged else ClassifierInputExtractor(model)
    with closing(inputs):
        loader = eval_loader(data, indices, preprocess, settings)
        return predict_in_order(inputs, loader, indices, settings.device, advance, autocast)
