"""Predictions for one image: classes or a target value, explanation maps, and distance from the training images."""

import base64
import io
import math
import threading
from typing import Any

from PIL import Image, ImageOps
from torch import Tensor

from paucal.data.channels.decoding import decode_image, image_shape
from paucal.data.channels.pixel_format import describe_bit_depth_difference, differs_in_bit_depth
from paucal.data.decode import UnreadableImage
from paucal.evaluation.calibration import reach_thresholds
from paucal.evaluation.familiarity import SIMILAR_FRACTION, FamiliarityDetector
from paucal.explain.attribution.methods import METHODS
from paucal.explain.figures.attribution import colour_limits
from paucal.explain.figures.pictures import blend_heat
from paucal.models.features import ClassifierInputExtractor, linear_classifier
from paucal.models.precision import EXPLICIT_CHOICES
from paucal.models.regression import RegressionCard
from paucal.models.trained import TrainedModel
from paucal.runner.console import LoggedConsole
from paucal.runner.familiar import features_of
from paucal.runner.inference import choose_precision_on_sample
from paucal.types import UserError
from paucal.verbs.explain.attribution import choose_method, explain_batch
from paucal.verbs.explain.inputs import prepare_input

MAX_PIXELS = 64_000_000  # largest number of pixels of an image; most phone photos have fewer
MAX_CLASSES = 10  # number of classes that are shown
EXPLAINED_CLASSES = 2  # number of classes with an explanation map


class PicturePredictor:
    """Predicts one image at a time; thread-safe.

    `familiarity` tests whether an image is similar to the training images, unless it is None. If `precision` is None,
    the fastest on this machine is chosen, measured on the first image. With `mirror`, the predictions for an image and
    its mirror image are averaged.
    """

    def __init__(
        self,
        model: TrainedModel,
        familiarity: FamiliarityDetector | None,
        precision: str | None = "32-true",
        mirror: bool = False,
    ) -> None:
        self.model = model if isinstance(model.card, RegressionCard) else model.require_classifier()
        self._exact_model, self._model_to_run = model.mirrored() if mirror else model, None
        if precision is not None:
            self._model_to_run = self._exact_model.at_precision(EXPLICIT_CHOICES[precision].dtype)
        self._familiarity, self._decode_options = familiarity, model.card.preprocessing.decode_options
        self._lock = threading.Lock()
        has_features = familiarity is not None and linear_classifier(model.module) is not None
        self._features = ClassifierInputExtractor(model.module) if has_features else None

    def predict(self, content: bytes, name: str, explain: bool) -> dict[str, Any]:
        """Return the prediction for an encoded image as a dictionary that can be converted to JSON.

        If `explain` is set, also compute maps that explain the most probable classes, which takes several times as
        long. A UserError refuses images that cannot be read or are too large.
        """
        with self._lock:  # held while decoding too, so that only one large image is in memory at a time
            picture = self._decode(content, name)
            if self._model_to_run is None:  # the first image
                choice = choose_precision_on_sample(
                    self.model, [picture, ImageOps.mirror(picture)], None, LoggedConsole()
                )
                self._model_to_run = self._exact_model.at_precision(choice.dtype)
            outputs = self._model_to_run.probabilities([picture])[0]
            card = self.model.card
            number_fields = _number_fields(card, outputs) if isinstance(card, RegressionCard) else {}
            common_fields = {
                "unlike": self._distance_fields(picture),
                "note": "",
                "explanation": self._explanation(picture, name, number_fields.get("says")) if explain else None,
            }
            if differs_in_bit_depth(content, name, self._decode_options):
                difference = describe_bit_depth_difference(self._decode_options, "The image has")
                common_fields["note"] = f"{difference}. The prediction is unreliable."
            if number_fields:
                return {"name": name, **number_fields, **common_fields}
            order = outputs.argsort(descending=True, stable=True).tolist()
            thresholds = card.thresholds
            is_chosen = None if thresholds is None else reach_thresholds(outputs, thresholds).tolist()
            # A class with a low threshold may be predicted without being among the most probable classes.
            further_chosen = [] if is_chosen is None else [index for index in order[MAX_CLASSES:] if is_chosen[index]]
            return {
                "name": name,
                "classes": [
                    {
                        "name": self.model.classes[index],
                        "probability": round(float(outputs[index]), 4),
                        "chosen": index == order[0] if is_chosen is None else bool(is_chosen[index]),
                    }
                    for index in [*order[:MAX_CLASSES], *further_chosen]
                ],
                "several": thresholds is not None,
                **common_fields,
            }

    def _decode(self, content: bytes, name: str) -> Image.Image:
        try:
            height, width = image_shape(content, name)  # reads no pixels
            if width * height > MAX_PIXELS:
                raise UserError(
                    f"{name} has {width} x {height} pixels, but at most {MAX_PIXELS // 10**6} million are supported: "
                    "send a smaller image."
                )
            return decode_image(content, name, self._decode_options)
        except UnreadableImage as problem:
            raise UserError(str(problem)) from problem

    def _distance_fields(self, picture: Image.Image) -> dict[str, Any]:
        """Return an image's distance from the training images, and whether the distance exceeds the limit."""
        if self._features is None or self._familiarity is None:
            return {"known": False}
        view = self.model.card.preprocessing.transform()(picture)[0]
        distance = float(self._familiarity.distances(features_of(self._features, self.model, view[None])))
        limit = self._familiarity.limit
        return {
            "known": True,
            "unlike": distance > limit,
            "distance": round(distance, 4),
            "limit": round(limit, 4),
            "inside": SIMILAR_FRACTION,
        }

    def _explanation(self, picture: Image.Image, name: str, says: str | None) -> dict[str, Any]:
        if next(self.model.module.parameters(), None) is None:
            return {"maps": [], "why": "an ONNX model cannot be explained: serve the run instead"}
        try:
            method, _ = choose_method(self.model, "auto")
            view = prepare_input(name, picture, self.model.card.preprocessing)
            explained = explain_batch(self.model, [view], method, None, EXPLAINED_CLASSES)[0]
        except UserError as problem:
            return {"maps": [], "why": str(problem)}
        low, high = colour_limits(explained.maps)
        rows, maps = zip(explained.classes, explained.probabilities, explained.maps, strict=False), []
        for label, probability, values in rows:
            buffer = io.BytesIO()
            blend_heat(explained.picture, values, low, high).save(buffer, "PNG")
            data_url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
            shown_probability = None if says else round(probability, 4)
            maps.append({"name": says or label, "probability": shown_probability, "picture": data_url})
        return {"maps": maps, "why": METHODS[method].title}


def _number_fields(card: RegressionCard, output: Tensor) -> dict[str, Any]:
    """Return a predicted target value with its 90 % interval and, if targets are grades, the grades' probabilities."""
    values = output.double().numpy()
    interval = {name: float(value[0]) for name, value in card.read(values)._asdict().items()}
    grades = (
        []
        if card.grades is None
        else zip(card.grades.values, card.grades.probabilities(values)[0].tolist(), strict=True)
    )
    classes = [
        {"name": str(grade), "probability": round(probability, 4), "chosen": grade == interval["predicted"]}
        for grade, probability in grades
    ]
    finite = {name: value if math.isfinite(value) else None for name, value in interval.items()}
    return {"target": card.target, "says": card.describe(float(values[0])), **finite, "classes": classes}
