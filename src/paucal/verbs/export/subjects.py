"""What an export needs from the models of each task: a graph, answers for images, and the run's own images."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from PIL import Image
from torch import Tensor, nn

from paucal.data.images import ImageSet
from paucal.data.splits.split import Split
from paucal.data.splits.split_csv import read_split
from paucal.data.views.normalisation import Normalisation
from paucal.export.comparison import Classifier
from paucal.export.program import EXAMPLES, Graph, graph_of
from paucal.models.tasks import DETECTION, SEGMENTATION, task_of
from paucal.models.trained import load_trained
from paucal.runner.console import Console
from paucal.runner.images import open_again
from paucal.runner.run_folder import typed_settings
from paucal.runs import RunFolder
from paucal.tasks.segmentation.images import open_segmentation_data
from paucal.tasks.segmentation.model import load_segmenter
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.tasks.segmentation.windows import pixel_probabilities
from paucal.types import UserError

Labelled = tuple[ImageSet, Split, Callable[[int], Tensor] | None]  # images, split, label of an image by its position


class ClassifierSubject(Classifier):
    """A classifier.

    Args:
        run: Run of `paucal train`.
        console: Shows how far the reading of images is.
    """

    unit = "images"

    def __init__(self, run: RunFolder, console: Console) -> None:
        self.model = load_trained(run).require_classifier()
        super().__init__(self.model)
        self.run, self.console, self.reading = run, console, self.card.preprocessing.reading

    def graph(self, pixels: bool) -> Graph:
        """Return the graph that is exported; `pixels` puts its preprocessing inside."""
        return graph_of(self.model, pixels)

    def calibrate(self, image: Image.Image) -> Tensor:
        """Return an image as an input of the graph."""
        return self.prepare(image, False)

    @cached_property
    def images(self) -> Labelled:
        """The images of the run."""
        with self.console.progress("reading images") as advance:
            images = open_again(self.run, advance, reading=self.reading)
        label = None if self.card.several else lambda row: torch.tensor(int(images.labels[row]))
        return images, read_split(self.run.split, images), label


class SegmenterSubject:
    """A segmentation network, asked about windows that cover the image.

    Args:
        run: Run of `paucal segment`.
        console: Shows how far the reading of images is.
    """

    thresholds, unit = None, "pixels"

    def __init__(self, run: RunFolder, console: Console) -> None:
        model = load_segmenter(run)
        self.run, self.console, self.card, self.reading = run, console, model.card, model.reading
        self.network = model.network.eval()
        self.options = replace(model.window_options(), batch=1, whole=False)
        self._statistics = Normalisation(model.card.preprocessing.mean, model.card.preprocessing.std)

    def graph(self, pixels: bool) -> Graph:
        """Return the graph that is exported: logits of a window's pixels.

        Raises:
            UserError: The preprocessing is to be inside.
        """
        if pixels:
            raise UserError("--with-preprocessing is for classifiers, and a segmenter reads windows: leave it out.")
        example = torch.zeros(EXAMPLES, self.card.backbone.in_chans, *self.card.preprocessing.image_size)
        return Graph(self.network, example, {0: "batch"}, "images", "logits")

    def prepare(self, image: Image.Image, pixels: bool) -> Tensor:
        """Return an image as a normalised (C, H, W) tensor."""
        return self._statistics.apply(image)

    def ask(self, network: nn.Module, given: Tensor, pixels: bool) -> Tensor:
        """Return the (K, H, W) probabilities of a prepared image."""
        return pixel_probabilities(network, given, self.options)

    def calibrate(self, image: Image.Image) -> Tensor:
        """Return the first window of an image, padded with the mean colour."""
        height, width = self.options.size
        whole = self.prepare(image, False)[:, :height, :width]
        return nn.functional.pad(whole, (0, width - whole.shape[2], 0, height - whole.shape[1]))[None]

    @cached_property
    def images(self) -> Labelled:
        """The images and masks of the run."""
        settings = typed_settings(self.run.settings, SegmentSettings)
        data = open_segmentation_data(settings, self.console.progress, self.run)
        return data.images, data.split, lambda row: torch.from_numpy(data.masks.read(row)).long()


Subject = ClassifierSubject | SegmenterSubject


def open_subject(run: RunFolder, console: Console) -> Subject:
    """Load the model of a run for an export.

    Raises:
        UserError: The run has no model, or one that is not exported.
    """
    task = task_of(run.path)
    if task == DETECTION:
        raise UserError("a detector is not exported: 'paucal predict' and 'paucal serve' run it.")
    return SegmenterSubject(run, console) if task == SEGMENTATION else ClassifierSubject(run, console)
