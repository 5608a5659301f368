"""Predictions of a classifier, detector or segmentation model for unlabelled images, with their uncertainty."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.data.images import ImageSet
from paucal.export.reading import load_model
from paucal.models.tasks import CLASSIFICATION, DETECTION, SEGMENTATION
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.familiar import load_familiarity
from paucal.runner.input_images import InputImages
from paucal.runs import RunFolder
from paucal.tasks.detection.detections import Detections
from paucal.tasks.detection.model import load_detector
from paucal.tasks.detection.pictures import MIN_SHOWN_SCORE
from paucal.tasks.segmentation.model import load_segmenter
from paucal.verbs.convert.content import Kind, LabelledImage, LabelledSet, number_classes, with_file_names
from paucal.verbs.next.selection import margin_uncertainty
from paucal.verbs.predict.answers import predict_batches
from paucal.verbs.predict.detection import detect_image
from paucal.verbs.predict.layouts import item_of_detections
from paucal.verbs.predict.settings import PredictSettings
from paucal.wording import percent

MAX_UNCERTAIN_OBJECTS = 3  # an image's uncertainty is the mean over up to this many most uncertain objects


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a model for N images."""

    unsure: Tensor  # (N,) uncertainty of the model about each image, from 0 to 1
    features: Tensor  # (N, D) features of the images
    training_features: Tensor  # (L, D) features of the model's L training images; (0, D) if these images are unknown
    is_unfamiliar: Tensor | None  # (N,) mask of images unlike the training images; None if the latter are unknown
    descriptions: list[str]  # description of the prediction for each image, such as "cat 54 %, dog 40 %"
    # The two most probable classes of each image, with probabilities; empty unless the task is classification.
    likeliest: list[list[tuple[str, float]]]
    # Function that returns a data set of the images at given positions, with predictions as labels.
    draft_labels: Callable[[NDArray[np.int64]], LabelledSet]


class Classifier:
    """An image classifier; `reading` has the options for decoding its input images."""

    def __init__(self, source: str, device: str) -> None:
        self.source = source
        self.model: TrainedModel = load_model(source, device).require_classifier()
        self.decode_options = self.model.card.preprocessing.decode_options

    def predict(self, images: ImageSet, console: Console) -> Predictions:
        """Predict the classes of N images; the features are the input of the final linear classifier."""
        pictures, settings = InputImages([images], self.decode_options), PredictSettings(batch_size=32)
        blocks = list(predict_batches(self.model, pictures, settings, console, features=True))
        rows = [row for block in blocks for row in block.predictions(self.model.card)]
        shares = torch.cat([block.shares for block in blocks])
        features = torch.cat([block.features for block in blocks if block.features is not None])
        run = RunFolder(Path(self.source))
        familiarity = load_familiarity(run, self.model, console) if run.config.exists() else None
        is_multi_label = self.model.card.is_multi_label
        likeliest = [row.top(2) for row in rows]
        descriptions = [", ".join(f"{name} {percent(share, '.0f')}" for name, share in top) for top in likeliest]

        def content(indices: NDArray[np.int64]) -> LabelledSet:
            classes = self.model.classes
            selected = replace(images.select(indices), classes=classes)
            labels = [tuple(rows[index].labels) for index in indices]
            if is_multi_label:
                is_named = [[name in image_labels for name in classes] for image_labels in labels]
                multi_hot = np.asarray(is_named, dtype=np.int8).reshape(len(selected), len(classes))
                selected = replace(selected, multi_hot=multi_hot)
            scores = shares[torch.from_numpy(indices)].amax(1).tolist()
            pairs = enumerate(zip(labels, scores, strict=True))
            items = [LabelledImage(n, "", "", labels=names, score=score) for n, (names, score) in pairs]
            return _named_content("train", selected, items, self.source, number_classes(classes))

        return Predictions(
            margin_uncertainty(shares, is_multi_label),
            features,
            features[:0] if familiarity is None else familiarity.features,
            None if familiarity is None else familiarity.distances(features) > familiarity.limit,
            descriptions,
            likeliest,
            content,
        )


class DetectorModel:
    """A detector; `reading` has the options for decoding its input images."""

    def __init__(self, source: str, device: str) -> None:
        self.source = source
        self.detector, self.card, self.device = load_detector(source, device)
        self.decode_options = replace(self.card.preprocessing.decode_options, side=None)

    def predict(self, images: ImageSet, console: Console) -> Predictions:
        """Detect objects in N images; the features are the spatial mean of the backbone's last feature map."""
        all_detections: list[Detections] = []
        sizes: list[tuple[int, int]] = []
        with console.progress("detecting") as advance, record_pooled_features(self.detector.stages) as take_features:
            features = []
            for index, key in enumerate(images.keys):
                objects = detect_image(self.detector, self.card, key, images.store.read(index), self.device)
                all_detections.append(objects.found)
                sizes.append(objects.size)
                features.append(take_features())
                advance(index + 1, len(images))
        unsure = torch.tensor([detection_uncertainty(detections) for detections in all_detections])
        stacked = torch.stack(features)
        descriptions = []
        for detections in all_detections:
            confident = detections.with_min_score(MIN_SHOWN_SCORE)
            names, counts = np.unique([self.card.classes[label] for label in confident.labels], return_counts=True)
            text = ", ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True)) or "no object"
            if scores := detections.scores.tolist():
                least_certain = min(scores, key=lambda score: abs(score - 0.5))
                text += f"; the least certain {percent(least_certain, '.0f')}"
            descriptions.append(text)

        def content(indices: NDArray[np.int64]) -> LabelledSet:
            items = [
                item_of_detections(position, sizes[index], all_detections[index], self.card.classes)
                for position, index in enumerate(indices.tolist())
            ]
            numbers = dict(zip(self.card.classes, self.card.category_ids, strict=True))
            return _named_content("detect", images.select(indices), items, self.source, numbers)

        return Predictions(unsure, stacked, stacked[:0], None, descriptions, [], content)


class Segmenter:
    """A segmentation model; `reading` has the options for decoding its input images."""

    def __init__(self, source: str, device: str) -> None:
        self.source = source
        self.model = load_segmenter(source, device)
        self.decode_options = self.model.decode_options

    def predict(self, images: ImageSet, console: Console) -> Predictions:
        """Segment N images; uncertainties are means over pixels, features spatial means of the last feature map."""
        unsure, features, sizes, descriptions = [], [], [], []
        stages: nn.Module = self.model.network.maps  # type: ignore[assignment]
        with console.progress("segmenting") as advance, record_pooled_features(stages) as take_features:
            for index in range(len(images)):
                shares = self.model.probabilities(images.store.read(index))
                sizes.append((shares.shape[1], shares.shape[2]))
                unsure.append(float(margin_uncertainty(shares.flatten(1).T).mean()))
                features.append(take_features())
                areas = shares.argmax(0).flatten().bincount(minlength=len(shares)) / shares[0].numel()
                order = areas.argsort(descending=True)[:2].tolist()
                descriptions.append(
                    ", ".join(f"{self.model.classes[n]} on {percent(float(areas[n]), '.0f')}" for n in order)
                )
                advance(index + 1, len(images))
        stacked = torch.stack(features)

        def content(indices: NDArray[np.int64]) -> LabelledSet:
            selected = images.select(indices)
            items = [LabelledImage(position, "", "", sizes[index]) for position, index in enumerate(indices.tolist())]
            unmasked = _named_content("segment", selected, items, self.source, number_classes(self.model.classes))
            return replace(unmasked, mask=lambda index: self.model.mask(selected.store.read(index)))

        return Predictions(torch.tensor(unsure), stacked, stacked[:0], None, descriptions, [], content)


MODELS = {CLASSIFICATION: Classifier, DETECTION: DetectorModel, SEGMENTATION: Segmenter}


def detection_uncertainty(detections: Detections) -> float:
    """Return the uncertainty of a detector about an image, from 0 to 1: the mean over the most uncertain objects.

    The uncertainty about an object with score p is 4 p (1 - p).

    Example:
        >>> pair = Detections(np.zeros((2, 4), np.float32), np.array([0.5, 1.0], np.float32), np.zeros(2, np.int64))
        >>> detection_uncertainty(pair)
        0.5
    """
    uncertainties = np.sort(4 * detections.scores * (1 - detections.scores))[::-1][:MAX_UNCERTAIN_OBJECTS]
    return float(uncertainties.mean()) if len(uncertainties) else 0.0


@contextmanager
def record_pooled_features(stages: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Yield a function that returns the (D,) spatial mean of the last feature map.

    The mean is also over all forward passes since the previous call of the function.
    """
    pooled: list[Tensor] = []
    handle = stages.register_forward_hook(lambda module, inputs, maps: pooled.append(maps[-1].float().mean((0, 2, 3))))

    def take_features() -> Tensor:
        mean = torch.stack(pooled).mean(0).cpu()
        pooled.clear()
        return mean

    try:
        yield take_features
    finally:
        handle.remove()


def _named_content(
    kind: Kind, images: ImageSet, items: list[LabelledImage], model: str, numbers: dict[str, int]
) -> LabelledSet:
    return with_file_names(LabelledSet(kind, images, tuple(items), numbers, model=Path(model).resolve().name))
