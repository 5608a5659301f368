"""`paucal.predict`: predict classes with probabilities, or target values, for images on disk or in memory."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from paucal.data.arguments import ImageInMemory, list_sources
from paucal.data.loader import inference_batch_size
from paucal.export.reading import load_model
from paucal.memory import keep_freed_memory
from paucal.models.regression import RegressionCard
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console, LoggedConsole
from paucal.runner.frames import Frame, images_of_frame, is_frame
from paucal.runner.inference import check_batch_memory, choose_precision_for_images
from paucal.runner.input_images import InputImages, open_sources
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.predict.answers import Predictions, predict_batches
from paucal.verbs.predict.regression import predict_target_values
from paucal.verbs.predict.settings import PredictSettings

Source = str | os.PathLike[str] | ImageInMemory


@with_settings_signature(PredictSettings)
def predict(
    model: TrainedModel | str | os.PathLike[str],
    images: Source | Sequence[Source] | Frame,
    /,
    *,
    features: bool = False,
    image: str | None = None,
    **settings: Any,
) -> Predictions:
    """Classify images with the model of a run, or predict their target values; the same as `paucal predict`.

    Args:
        model: A run folder, or a model loaded with `paucal.load`, which stays on its device.
        images: One or several image files, folders (searched to any depth), Parquet files, patterns such as
            "photos/*.jpg", PIL images, or arrays (H, W) or (H, W, C) with the model's number of channels; or a
            DataFrame with a row per image.
        image: Column of a DataFrame with the paths or PIL images; None for the first column with a usual name, such
            as "path".
        features: Whether to also return the features of each image, which are the input of the final linear classifier.
        **settings: Any field of `paucal.verbs.predict.settings.PredictSettings`: `batch_size`, `device`,
            `mirror`, `on_bad_image`, `precision`.

    Returns:
        A list with a prediction for each image, in the order given; images of a folder are sorted by name. The logger
        "paucal" warns about each skipped image. `to_pandas()` converts the list to a DataFrame. For a regression model,
        trained with `target`, the list has `RegressionPrediction`s with `predicted`, `low` and `high`.

    Raises:
        UserError: The run does not exist or has no classifier, an image does not exist or cannot be read, or
            `features` is set for an ONNX model.
        TypeError: A setting does not exist.

    Example:
        >>> rows = paucal.predict("runs/1", "new_photos/")  # doctest: +SKIP
        >>> rows[0].path, rows[0].predicted, rows[0].confidence  # doctest: +SKIP
        ('new_photos/1.jpg', 'cat', 0.98)
    """
    sources = images_of_frame(images, image) if is_frame(images) else list_sources(images)
    typed_settings = settings_from_keywords(PredictSettings, settings, "paucal.predict", "predict")
    check_ranges(typed_settings)  # before the model is loaded
    if isinstance(model, TrainedModel) and settings.get("device") is not None:
        raise UserError(
            f"--device is {typed_settings.device!r}, but the model is already loaded on {model.device}: remove "
            "--device."
        )
    if not sources:
        raise UserError("there are no images to classify: give files, folders, PIL images or arrays.")
    trained = model if isinstance(model, TrainedModel) else load_model(model, typed_settings.device)
    predicts_numbers, console = isinstance(trained.card, RegressionCard), LoggedConsole()
    if not predicts_numbers:
        trained.require_classifier()
    trained, pictures, typed_settings = open_pictures(trained, sources, typed_settings, console)
    assert typed_settings.batch_size is not None  # chosen by `open_pictures`
    # Keeping freed memory for reuse only saves time if there are several batches.
    with keep_freed_memory() if len(pictures) > typed_settings.batch_size else nullcontext():
        if predicts_numbers:
            return predict_target_values(trained, pictures, typed_settings, console, features)  # type: ignore[return-value]
        blocks = predict_batches(trained, pictures, typed_settings, console, features=features)
        return Predictions(row for block in blocks for row in block.predictions(trained.card))


def open_pictures(
    model: TrainedModel, sources: Sequence[str | ImageInMemory], settings: PredictSettings, console: Console
) -> tuple[TrainedModel, InputImages, PredictSettings]:
    """Return the model with its precision and mirroring set, the input images, and the completed settings.

    The returned settings have a batch size and a precision.
    """
    if settings.scales is not None:
        raise UserError("--scales is only for segmentation models, but this model is a classifier: remove --scales.")
    preprocess = model.card.preprocessing
    pictures = InputImages(open_sources(sources, console, preprocess.decode_options), preprocess.decode_options)
    batch_size = inference_batch_size(preprocess.image_size, model.device.type, settings.batch_size)
    check_batch_memory(min(batch_size, len(pictures)), preprocess.image_size)
    choice = choose_precision_for_images(model, settings.precision, pictures, console)
    model = model.at_precision(choice.dtype)
    settings = replace(settings, batch_size=batch_size, precision=choice.precision)
    return model.mirrored() if settings.mirror else model, pictures, settings
