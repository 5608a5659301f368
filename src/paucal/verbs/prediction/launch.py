"""`paucal.predict`: probabilities for images, folders, patterns and pictures."""

import os
from collections.abc import Sequence
from typing import Any

from PIL import Image

from paucal.evaluation.deployed import Deployed
from paucal.export.reading import load_model
from paucal.settings.options import check_ranges
from paucal.settings.values import from_python, shows_settings
from paucal.types import UserError
from paucal.verbs.prediction.answers import Prediction
from paucal.verbs.prediction.pictures import open_sources, read_all
from paucal.verbs.prediction.settings import PredictSettings
from paucal.verbs.run.room import check_batch
from paucal.verbs.run.voice import Logged, Voice

Source = str | os.PathLike[str] | Image.Image


@shows_settings(PredictSettings)
def predict(
    model: Deployed | str | os.PathLike[str], images: Source | Sequence[Source], /, **settings: Any
) -> list[Prediction]:
    """Classify images with the model of a run; the same as `paucal predict`.

    Args:
        model: a run, its folder, or a model that `paucal.load` has loaded, which stays on the device it is on.
        images: image files, folders (searched to any depth), Parquet files, patterns such as "photos/*.jpg", and PIL
            images; one or several of them.
        **settings: any field of `paucal.verbs.prediction.settings.PredictSettings`: `batch_size`, `device`,
            `on_bad_image`.

    Returns:
        A prediction for each image, in the order given, those of folders sorted by name. Images that are skipped are
        warned of in the log "paucal".

    Raises:
        UserError: there is no such run, it has no classifier, or an image is not there or cannot be read.
        TypeError: a setting does not exist.

    Example:
        >>> rows = paucal.predict("runs/1", "new_photos/")  # doctest: +SKIP
        >>> rows[0].path, rows[0].predicted, rows[0].confidence  # doctest: +SKIP
        ('new_photos/1.jpg', 'cat', 0.98)
    """
    sources = [images] if isinstance(images, str | os.PathLike | Image.Image) else images
    chosen = from_python(PredictSettings, settings, "paucal.predict", "predict")
    if isinstance(model, Deployed) and settings.get("device") is not None:
        raise UserError(f"--device is {chosen.device!r}, and the model is loaded on {model.device}: leave it out.")
    words = [one if isinstance(one, Image.Image) else os.fspath(one) for one in sources]
    if not words:
        raise UserError("there are no images to classify: give files, folders or pictures.")
    return classify_all(model if isinstance(model, Deployed) else os.fspath(model), words, chosen, Logged())


def classify_all(
    model: Deployed | str, sources: Sequence[str | Image.Image], settings: PredictSettings, voice: Voice
) -> list[Prediction]:
    """Classify everything that some sources hold; see `predict`."""
    check_ranges(settings)
    loaded = (model if isinstance(model, Deployed) else load_model(model, settings.device)).require_classifier()
    if settings.mirror:
        loaded = loaded.mirrored()
    opened = open_sources(sources, voice)
    total, fed = sum(map(len, opened)), loaded.card.preprocessing
    check_batch(min(settings.batch_size, total), fed.image_size)
    names: list[str | None] = []

    def read():
        for name, picture in read_all(opened, fed.reading, settings.on_bad_image, voice):
            names.append(name)
            yield picture

    found: list[Prediction] = []
    with voice.progress("classifying") as advance:
        for place, row in enumerate(loaded.classify(read(), settings.batch_size)):
            found.append(Prediction(names[place], loaded.classes, row, loaded.card.thresholds))
            advance(place + 1, total)
    return found
