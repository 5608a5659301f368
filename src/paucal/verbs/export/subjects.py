"""The models that can be exported, by task: their graphs, the predictions of the graphs, and the images of the run."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import tv_tensors

from paucal.data.images import ImageSet
from paucal.data.splits.split import Split
from paucal.data.splits.split_csv import read_split
from paucal.export.comparison import Classifier, Difference, compare, compare_objects
from paucal.export.program import BATCH_SIZE, Graph, graph_of
from paucal.models.regression import RegressionCard
from paucal.models.tasks import DETECTION, REGRESSION, SEGMENTATION, task_of
from paucal.models.trained import TrainedModel, load_trained
from paucal.runner.console import Console
from paucal.runner.images import open_again
from paucal.runner.resuming import typed_settings
from paucal.runs import RunFolder
from paucal.tasks.detection.images import open_boxed_images
from paucal.tasks.detection.model import load_detector
from paucal.tasks.detection.network.one_image import OneImageDetector
from paucal.tasks.detection.views import make_empty_target, make_evaluation_transform
from paucal.tasks.segmentation.images import open_segmentation_data
from paucal.tasks.segmentation.model import load_segmenter
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.tasks.segmentation.windows import pixel_probabilities
from paucal.types import UserError

# Predictions count as equal if they differ by at most this many standard deviations of the target.
MAX_EQUAL_DEVIATION = 0.1
# (images, split, function from the position of an image to its label). The function is None if there are no labels.
ExportImages = tuple[ImageSet, Split, Callable[[int], Tensor] | None]


class ExportableClassifier(Classifier):
    """A classifier to export: the run's model or `model`; `mirror` averages over each image and its mirror image."""

    unit = "images"

    def __init__(
        self, run: RunFolder, console: Console, mirror: bool = False, model: TrainedModel | None = None
    ) -> None:
        model = model or self.require(load_trained(run))
        self.model, self.mirror = model.mirrored() if mirror else model, mirror
        super().__init__(self.model)
        self.run, self.console, self.decode_options = run, console, self.card.preprocessing.decode_options

    def require(self, model: TrainedModel) -> TrainedModel:
        """Return the model, or raise a UserError if it is not a classifier."""
        return model.require_classifier()

    def graph(self, with_preprocessing: bool) -> Graph:
        """Return the graph to export, with or without preprocessing."""
        return graph_of(self.model, with_preprocessing)

    def calibrate(self, image: Image.Image) -> Tensor:
        """Return an image as a calibration input of the graph."""
        return self.prepare(image, False)

    @cached_property
    def images(self) -> ExportImages:
        """The images, the split and the labels of the run."""
        with self.console.progress("reading images") as advance:
            images = open_again(self.run, advance, decode_options=self.decode_options)
        label = None if self.card.is_multi_label else lambda row: torch.tensor(int(images.labels[row]))
        return images, read_split(self.run.split, images), label


class ExportableRegressor(ExportableClassifier):
    """A regression model to export; see `ExportableClassifier` for the arguments."""

    unit = "numbers"

    def require(self, model: TrainedModel) -> TrainedModel:
        """Return the model, whose task `open_exportable_model` has checked."""
        return model

    def compare(self, original: Tensor, exported: Tensor, label: Tensor | None) -> Difference:
        """Return the difference between two (1,) predicted values, in standard deviations of the target."""
        assert isinstance(self.card, RegressionCard)
        largest = float((original - exported).abs().nan_to_num(torch.inf).max()) / self.card.deviation
        return Difference(largest, float(largest <= MAX_EQUAL_DEVIATION), None)

    @cached_property
    def images(self) -> ExportImages:
        """The images and the split of the run, without labels."""
        images, split, _ = super().images
        return images, split, None


class ExportableSegmenter:
    """A segmentation network to export, which is applied to windows that cover the image."""

    unit = "pixels"

    def __init__(self, run: RunFolder, console: Console) -> None:
        model = load_segmenter(run)
        self.run, self.console, self.card, self.decode_options = run, console, model.card, model.decode_options
        self.network = model.network.eval()
        self.options = replace(model.window_options(), batch=1, whole=False)
        self._statistics = model.card.preprocessing.normalisation

    def graph(self, with_preprocessing: bool) -> Graph:
        """Return the graph to export, which maps a window of an image to the logits of the window's pixels."""
        if with_preprocessing:
            raise UserError(
                "--with-preprocessing is for classifiers, but a segmenter reads windows: remove --with-preprocessing."
            )
        example = torch.zeros(BATCH_SIZE, self.card.backbone.in_chans, *self.card.preprocessing.image_size)
        return Graph(self.network, example, {0: "batch"}, "images", "logits")

    def prepare(self, image: Image.Image, with_preprocessing: bool) -> Tensor:
        """Return an image as a normalised (C, H, W) tensor."""
        return self._statistics.apply(image)

    def predict(self, network: nn.Module, prepared: Tensor, with_preprocessing: bool) -> Tensor:
        """Return the (K, H, W) probabilities of a prepared image."""
        return pixel_probabilities(network, prepared, self.options)

    def compare(self, original: Tensor, exported: Tensor, label: Tensor | None) -> Difference:
        """Return the difference between the pixel probabilities of the model and of the exported file for an image."""
        return compare(original, exported, label, None)

    def calibrate(self, image: Image.Image) -> Tensor:
        """Return the first window of an image as a calibration input, padded with the mean colour."""
        height, width = self.options.size
        top_left = self.prepare(image, False)[:, :height, :width]
        return nn.functional.pad(top_left, (0, width - top_left.shape[2], 0, height - top_left.shape[1]))[None]

    @cached_property
    def images(self) -> ExportImages:
        """The images, the split and the masks of the run."""
        settings = typed_settings(self.run.settings, SegmentSettings)
        data = open_segmentation_data(settings, self.console.progress, self.run)
        return data.images, data.split, lambda row: torch.from_numpy(data.masks.read(row)).long()


class ExportableDetector:
    """A detector to export, which returns a table of the objects in an image."""

    unit = "objects"

    def __init__(self, run: RunFolder, console: Console) -> None:
        detector, card, _ = load_detector(run)
        self.run, self.console, self.card = run, console, card
        self.network = OneImageDetector(detector.eval())
        self.decode_options = replace(card.preprocessing.decode_options, side=None)
        self._view = make_evaluation_transform(card.resize_to, card.preprocessing.mean, card.preprocessing.std)

    def graph(self, with_preprocessing: bool) -> Graph:
        """Return the graph to export, which maps an image of any size to a table of the objects in the image."""
        if with_preprocessing:
            raise UserError(
                "--with-preprocessing is for classifiers, but this model is a detector: remove --with-preprocessing."
            )
        height, width = self.card.resize_to
        # The example has unequal sides and needs padding; otherwise, tracing would assume equal sides and no padding.
        example = torch.zeros(1, self.card.backbone.in_chans, height - 5, width + 27)
        return Graph(self.network, example, {2: "height", 3: "width"}, "images", "objects")

    def prepare(self, image: Image.Image, with_preprocessing: bool) -> Tensor:
        """Return an image as `paucal predict` resizes and normalises it."""
        view = self._view(tv_tensors.Image(image), make_empty_target((image.height, image.width)))[0]
        return view.as_subclass(Tensor)[None]

    def predict(self, network: nn.Module, prepared: Tensor, with_preprocessing: bool) -> Tensor:
        """Return the table of the objects of a prepared image; see `OneImageDetector`."""
        return network(prepared)

    def compare(self, original: Tensor, exported: Tensor, label: Tensor | None) -> Difference:
        """Return the difference between the objects that the model and the exported file detect in an image."""
        return compare_objects(original, exported)

    def calibrate(self, image: Image.Image) -> Tensor:
        """Return an image as an input of the graph."""
        return self.prepare(image, False)

    @cached_property
    def images(self) -> ExportImages:
        """The images and the split of the run, without boxes."""
        location = self.run.settings.get("data")
        if not isinstance(location, str):
            raise UserError(f"the run {str(self.run.path)!r} does not name its training images: give --data.")
        images = open_boxed_images(location, outlines=False).images
        return images, read_split(self.run.split, images), None


Subject = ExportableClassifier | ExportableSegmenter | ExportableDetector
SUBJECTS = {SEGMENTATION: ExportableSegmenter, DETECTION: ExportableDetector, REGRESSION: ExportableRegressor}


def open_exportable_model(run: RunFolder, console: Console, mirror: bool = False) -> Subject:
    """Load the model of a run for export; see `ExportableClassifier` for the arguments."""
    task = task_of(run.path)
    subject_type = SUBJECTS.get(task, ExportableClassifier)
    if issubclass(subject_type, ExportableClassifier):
        return subject_type(run, console, mirror)
    if mirror:
        raise UserError(
            f"--mirror averages the predictions of a classifier, but {run.path} is for {task}: remove --mirror."
        )
    return subject_type(run, console)
