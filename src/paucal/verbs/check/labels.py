"""Search for probably wrong labels with features from a run or from weights on this machine, or with pixels."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold
from torch import Tensor, nn

from paucal.data.channels.pixels import RGB
from paucal.data.images import ImageSet, reduce_images
from paucal.data.loader import make_eval_loader
from paucal.data.stores import RgbStore
from paucal.data.views.transforms import ViewTransform
from paucal.evaluation.confident_learning import suspected_labels
from paucal.evaluation.predictions import predict_in_order
from paucal.evaluation.protocols.logistic import fit_logistic
from paucal.models.features import ClassifierInputExtractor, linear_classifier
from paucal.models.named import find_named, open_named
from paucal.models.precision import EXPLICIT_CHOICES, FLOAT32, MEASURED_IMAGES, bfloat16_flags, choose_precision
from paucal.models.preprocessing import Preprocessing
from paucal.models.weights.local import ready_weights
from paucal.models.weights.store import AddedWeights
from paucal.models.weights.table import PretrainedWeights
from paucal.runner.console import Console
from paucal.runs import RunFolder
from paucal.settings.options import check_size
from paucal.tasks.classification.auto_tune.probe import SOLVER, fit_head
from paucal.types import UserError
from paucal.verbs.check.settings import CheckSettings

Advance = Callable[[int, int], None]
INPUT_SIDE = 160  # input size of networks in pixels
SMALL_INPUT_SIDE = 128  # input size of networks in pixels, for sets of small images
MAX_SMALL_SIDE = 64  # largest median of the images' shorter sides, in pixels, at which a set counts as small images
PIXEL_SIDE = 16  # side in pixels of the thumbnails whose pixels are the features if there is no network
FOLDS = 5  # largest number of cross-validation folds


@dataclass(frozen=True)
class FeatureReader:
    """Extracts features of images, with a network or as plain pixels."""

    name: str  # name of the model for messages; "" for plain pixels
    module: nn.Module | None = None  # network with (B, D) features as output; None for plain pixels
    preprocess: Preprocessing | None = None  # preprocessing of images for the network; None for plain pixels
    settings: CheckSettings = field(default_factory=CheckSettings)
    device: str = "cpu"
    architecture: str = ""

    @property
    def trained(self) -> bool:
        """Whether the features come from a trained network instead of plain pixels."""
        return self.module is not None

    def read(
        self, images: ImageSet, indices: NDArray[np.int64], progress: Advance | None = None, detail: int | None = None
    ) -> Tensor:
        """Return (N, D) float32 features on the CPU, in the order of `indices`.

        If `detail` is given, images are first downscaled to a shorter side of `detail` pixels, so that an image and a
        smaller copy of this image have similar features.
        """
        if self.module is None or self.preprocess is None:
            return _pixel_features(reduce_images(images, 4 * PIXEL_SIDE), indices, progress)
        images = reduce_images(images, 2 * max(self.preprocess.image_size))  # training reduces images in the same way
        transform = DownscalingTransform(self.preprocess.transform(), detail)
        # Published weights have three input channels, so they get the first three channels of the images.
        if self.preprocess.channels == RGB != images.decode_options.channels:
            images = replace(images, store=RgbStore(images.store))
        batch_size, workers = self.settings.batch_size, self.settings.workers
        loader = make_eval_loader(images, indices, transform, batch_size, workers, pin_memory=False)
        precision = FLOAT32
        if self.settings.precision is not None:
            precision = EXPLICIT_CHOICES[self.settings.precision]
        elif bfloat16_flags() and len(indices):
            sample_loader = make_eval_loader(images, indices[:MEASURED_IMAGES], transform, MEASURED_IMAGES)
            views = next(iter(sample_loader)).views[0].to(self.device)
            precision = choose_precision(self.module, views, self.architecture, len(indices), has_logits=False)
        return predict_in_order(self.module, loader, indices, self.device, progress, precision.dtype)


@dataclass(frozen=True)
class DownscalingTransform:
    """View transform that first downscales the image; a class, since spawned loader workers need a picklable object."""

    transform: ViewTransform
    side: int | None  # shorter side of the downscaled image in pixels; None keeps the size

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        """Downscale an image, and return the result of `transform` for the downscaled image."""
        shorter_side = min(image.size)
        if self.side is not None and shorter_side > self.side:
            width, height = (max(1, round(length * self.side / shorter_side)) for length in image.size)
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        return self.transform(image)


def find_local_weights() -> PretrainedWeights | AddedWeights | None:
    """Return the preferred trained weights that are on this machine; None if there are no weights."""
    return next(iter(ready_weights("cpu")), None)


def open_reader(settings: CheckSettings, side: int) -> FeatureReader:
    """Return a reader for --model, for weights on this machine, or for pixels; `side` is the median shorter side."""
    check_size(settings.img_size)
    if settings.model is None and (weights := find_local_weights()) is not None:
        settings = replace(settings, model=weights.name)
    name = settings.model
    if name is None:
        return FeatureReader("", settings=settings)
    is_run = isinstance(find_named(name, "--model"), RunFolder)
    if is_run and settings.img_size is not None:
        raise UserError(
            "--img-size is not supported for the model of a run, which has its own input size: remove --img-size."
        )
    if not is_run and settings.img_size is None:
        settings = replace(settings, img_size=[SMALL_INPUT_SIDE if side <= MAX_SMALL_SIDE else INPUT_SIDE])
    model = open_named(name, settings.device, settings.img_size, "--model")
    if linear_classifier(model.module) is None:
        raise UserError(
            f"--model: {name} has no linear classifier, whose input would be the features: choose another model."
        )
    preprocess = model.card.preprocessing if is_run else replace(model.card.preprocessing, crop_ratio=1.0)
    module, card = ClassifierInputExtractor(model.module).eval(), model.card
    return FeatureReader(name, module, preprocess, settings, str(model.device), card.backbone.name)


def _pixel_features(images: ImageSet, indices: NDArray[np.int64], progress: Advance | None) -> Tensor:
    features = np.empty((len(indices), PIXEL_SIDE * PIXEL_SIDE * 3), dtype=np.float32)
    for position, index in enumerate(indices.tolist()):
        thumbnail = images.store.read(index).resize((PIXEL_SIDE, PIXEL_SIDE), Image.Resampling.BOX)
        features[position] = np.asarray(thumbnail, dtype=np.float32).reshape(-1) / 255
        if progress is not None and position % 256 == 255:
            progress(position + 1, len(indices))
    return torch.from_numpy(features)


@dataclass(frozen=True)
class SuspectLabel:
    """An image whose label is probably wrong.

    Attributes:
        confidence: Probability of the class `given`, predicted by a classifier that was not fitted on this image.
        suggested_confidence: Probability of the class `suggested`, predicted by the same classifier.
    """

    position: int
    given: str
    suggested: str
    confidence: float
    suggested_confidence: float

    def to_dict(self, images: ImageSet) -> dict[str, Any]:
        """Return the fields as JSON values, with the key of the image."""
        values = {name: value for name, value in vars(self).items() if name != "position"}
        return {"key": images.keys[self.position], **values}


def find_suspects(
    images: ImageSet,
    indices: NDArray[np.int64],
    features: Tensor,
    groups: NDArray[np.int64],
    seed: int,
    console: Console,
) -> tuple[list[SuspectLabel], float]:
    """Return labels that are probably wrong, the most suspect first, and the fraction of labels predicted correctly.

    `indices` are the (N,) positions of labelled images, with (N, D) features and (N,) group numbers. A group of copies
    stays in one fold, since a copy in another fold would reveal the label.
    """
    labels, n_classes = images.labels[indices], len(images.classes)
    targets = torch.from_numpy(labels).long()
    shares = np.zeros((len(labels), n_classes))  # out-of-fold probabilities
    with console.progress("fitting classifiers") as advance:
        penalty = fit_head(features, targets, n_classes, seed).strength  # chosen as for the linear probe of a run
        splitter = StratifiedGroupKFold(min(FOLDS, len(np.unique(groups))), shuffle=True, random_state=seed % 2**32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # some classes have fewer images than folds
            splits = splitter.split(labels, labels, groups)
            folds = [(train, held_out) for train, held_out in splits if len(train) and len(held_out)]
        for done, (train, held_out) in enumerate(folds, 1):
            mean, deviation = features[train].mean(0), features[train].std(0).clamp(min=1e-8)
            standardised = (features - mean) / deviation
            classifier = fit_logistic(standardised[train], targets[train], n_classes, penalty, SOLVER)
            shares[held_out] = classifier.scores(standardised[held_out]).double().softmax(1).numpy()
            advance(done, len(folds))
    suspects = []
    for suspect in suspected_labels(shares, labels):
        names = images.classes[suspect.given], images.classes[suspect.suggested]
        confidences = suspect.confidence, suspect.suggested_confidence
        suspects.append(SuspectLabel(int(indices[suspect.position]), *names, *confidences))
    return suspects, float((shares.argmax(1) == labels).mean())
