"""Search for probably wrong labels with features from a run or from weights on this machine, or with pixels."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from paucal.models.precision import (
    EXPLICIT_CHOICES,
    FLOAT32,
    MEASURED_IMAGES,
    PrecisionChoice,
    bfloat16_flags,
    choose_precision,
)
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
# In pixels: input size for small images, and largest median of the images' shorter sides at which they count as small.
SMALL_INPUT_SIDE, MAX_SMALL_SIDE = 128, 64
PIXEL_SIDE = 16  # side in pixels of the thumbnails whose pixels are the features if there is no network
FOLDS = 5  # largest number of cross-validation folds


@dataclass(frozen=True)
class FeatureReader:
    """Extracts features of images.

    Attributes:
        name: Name of the model for messages; "" for plain pixels.
        module: Network with (B, D) features as output; None for plain pixels.
        preprocess: Preprocessing of images for the network; None for plain pixels.
    """

    name: str
    module: nn.Module | None = None
    preprocess: Preprocessing | None = None
    device: str = "cpu"
    architecture: str = ""

    @property
    def trained(self) -> bool:
        """Whether the features come from a trained network instead of plain pixels."""
        return self.module is not None

    def read(
        self,
        images: ImageSet,
        indices: NDArray[np.int64],
        settings: CheckSettings,
        progress: Advance | None = None,
        detail: int | None = None,
    ) -> Tensor:
        """Return (N, D) float32 features on the CPU, in the order of `indices`.

        If `detail` is given, images are first downscaled to a shorter side of `detail` pixels, so that an image and a
        smaller copy of this image have similar features.
        """
        if self.module is None or self.preprocess is None:
            return _pixel_features(reduce_images(images, 4 * PIXEL_SIDE), indices, progress)
        images = reduce_images(images, 2 * max(self.preprocess.image_size))  # as in training
        transform = DownscalingTransform(self.preprocess.transform(), detail)
        # Published weights have three input channels, so they get the first three channels of the images.
        if self.preprocess.channels == RGB != images.decode_options.channels:
            images = replace(images, store=RgbStore(images.store))
        loader = make_eval_loader(images, indices, transform, settings.batch_size, settings.workers, pin_memory=False)
        autocast = self._choose_precision(images, indices, transform, settings).dtype
        return predict_in_order(self.module, loader, indices, self.device, progress, autocast)

    def _choose_precision(
        self, images: ImageSet, indices: NDArray[np.int64], transform: ViewTransform, settings: CheckSettings
    ) -> PrecisionChoice:
        if settings.precision is not None:
            return EXPLICIT_CHOICES[settings.precision]
        if self.module is None or not bfloat16_flags() or not len(indices):
            return FLOAT32
        sample_loader = make_eval_loader(images, indices[:MEASURED_IMAGES], transform, MEASURED_IMAGES)
        views = next(iter(sample_loader)).views[0].to(self.device)
        return choose_precision(self.module, views, self.architecture, len(indices), has_logits=False)


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
    """Return a reader that extracts features with --model, or by default with weights on this machine.

    If there are no weights, the features are plain pixels. `side` is the median shorter side of the images in pixels.
    """
    check_size(settings.img_size)
    if settings.model is None and (weights := find_local_weights()) is not None:
        settings = replace(settings, model=weights.name)
    name = settings.model
    if name is None:
        return FeatureReader("")
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
    return FeatureReader(name, module, preprocess, str(model.device), card.backbone.name)


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

    `indices` are the (N,) positions of labelled images, `features` their (N, D) features, and `groups` their (N,) group
    numbers. A group of copies stays in one fold, since a copy in another fold would reveal the label.
    """
    labels = images.labels[indices]
    with console.progress("fitting classifiers") as advance:
        given = torch.from_numpy(labels).long()
        shares = predict_out_of_fold(features, given, len(images.classes), groups, seed, advance)
    suspects = []
    for suspect in suspected_labels(shares, labels):
        names = images.classes[suspect.given], images.classes[suspect.suggested]
        confidences = suspect.confidence, suspect.suggested_confidence
        suspects.append(SuspectLabel(int(indices[suspect.position]), *names, *confidences))
    return suspects, float((shares.argmax(1) == labels).mean())


def predict_out_of_fold(
    features: Tensor, labels: Tensor, n_classes: int, groups: NDArray[np.int64], seed: int, progress: Advance
) -> NDArray[np.float64]:
    """Return (N, K) out-of-fold probabilities of logistic regressions on standardised features.

    The L2 penalty is chosen as for the linear probe of `paucal train`. All images of a group are in one fold.
    """
    penalty = fit_head(features, labels, n_classes, seed).strength
    probabilities = np.zeros((len(labels), n_classes))
    folds = _make_folds(labels.numpy(), groups, seed)
    for done, (train_rows, held_out_rows) in enumerate(folds):
        train_features, held_out_features = features[train_rows], features[held_out_rows]
        mean, deviation = train_features.mean(0), train_features.std(0).clamp(min=1e-8)
        classifier = fit_logistic((train_features - mean) / deviation, labels[train_rows], n_classes, penalty, SOLVER)
        scores = classifier.scores((held_out_features - mean) / deviation)
        probabilities[held_out_rows] = scores.double().softmax(1).numpy()
        progress(done + 1, len(folds))
    return probabilities


def _make_folds(labels: NDArray[np.int64], groups: NDArray[np.int64], seed: int) -> list[tuple[NDArray, NDArray]]:
    folds = StratifiedGroupKFold(min(FOLDS, len(np.unique(groups))), shuffle=True, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some classes have fewer images than folds
        return [pair for pair in folds.split(labels, labels, groups) if len(pair[0]) and len(pair[1])]
