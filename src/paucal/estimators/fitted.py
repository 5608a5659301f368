"""Base classes of paucal's estimators, and the conversion of their input images."""

import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, TransformerTags, check_random_state
from sklearn.utils.validation import check_is_fitted

from paucal.data.arguments import ImageInMemory
from paucal.models.trained import TrainedModel, load_trained
from paucal.runner.frames import columns_of, is_frame, store_columns
from paucal.runs.folder import create_next_numbered
from paucal.tasks.train import train
from paucal.verbs.predict.launch import predict

MIN_TEST_FRACTION = 1e-6  # `train` rounds this fraction up to one test image, or one test image per class
NOT_SETTINGS = ("random_state", "runs", "settings")  # estimator parameters that are not settings of `paucal.train`
Images = Any  # a sequence of paths, PIL images or uint8 arrays, one uint8 array of all images, or a one-column table
EXPECTED_IMAGES = (
    "expected paths, PIL images, or uint8 arrays of (height, width) or (height, width, channels): a list, an array of "
    "(images, height, width[, channels]), or a table with one column"
)


def list_images(images: Images) -> list[str | ImageInMemory]:
    """Convert X to a list of paths, PIL images and uint8 arrays."""
    if isinstance(images, str | os.PathLike | Image.Image):
        raise ValueError(f"X is a single image, {EXPECTED_IMAGES}.")
    items = [os.fspath(image) if isinstance(image, os.PathLike) else image for image in _iterate_images(images)]
    if not items:
        raise ValueError("X has no images (0 samples), at least 1 is required.")
    for index, image in enumerate(items):
        is_array = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in (2, 3)
        if not is_array and not isinstance(image, str | Image.Image):
            actual = f"an array of {image.shape} {image.dtype}" if isinstance(image, np.ndarray) else repr(type(image))
            raise ValueError(f"X[{index}] is {actual}, {EXPECTED_IMAGES}.")
    return items


def _iterate_images(images: Images) -> Iterable[Any]:
    if is_frame(images) and hasattr(images, "columns"):
        columns = columns_of(images)
        if len(columns) != 1:
            raise ValueError(
                f"X has the columns {', '.join(columns)}, expected one column: select the column of images."
            )
        return next(iter(columns.values()))
    if isinstance(images, np.ndarray) and images.dtype.kind in "OUS" and images.ndim == 2 and images.shape[1] == 1:
        return images[:, 0]  # ColumnTransformer passes a single column in this form
    if hasattr(images, "tocsr"):
        raise ValueError(f"X is a sparse matrix, and sparse input is not supported: {EXPECTED_IMAGES}.")
    is_scalar = isinstance(images, bytes) or (isinstance(images, np.ndarray) and images.ndim == 0)
    if is_scalar or not isinstance(images, Iterable):
        raise ValueError(f"X is of the type {type(images).__name__}, {EXPECTED_IMAGES}.")
    return images


class ImageEstimator(BaseEstimator):
    """An estimator with a trained network; copies and pickles of the estimator load the network again."""

    _loaded: list[TrainedModel]  # empty before the first use; a list, since prediction must not set attributes

    @abstractmethod
    def _load(self) -> TrainedModel:
        """Load the network of the fitted estimator."""

    def _network(self) -> TrainedModel:
        check_is_fitted(self)
        if not self._loaded:
            self._loaded.append(self._load())
        return self._loaded[0]

    def _predict_all(self, X: Images, **options: Any) -> Any:
        """Return the prediction of the network for each image in X."""
        network, images = self._network(), list_images(X)
        predictions = predict(network, images, **options)
        if len(predictions) != len(images):  # some paths are folders or tables
            raise ValueError(f"X has {len(images)} entries but {len(predictions)} images, {EXPECTED_IMAGES}.")
        return predictions

    def transform(self, X: Images) -> NDArray[np.float32]:
        """Return the (N, D) inputs of the network's last layer, as features for other estimators."""
        predictions = self._predict_all(X, features=True)
        return np.stack([entry.features.numpy() for entry in predictions if entry.features is not None])

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {**state, **({"_loaded": []} if "_loaded" in state else {})}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array, tags.input_tags.string = False, True, True
        tags.transformer_tags = TransformerTags(preserves_dtype=[])  # features are float32
        tags.no_validation = True  # images may differ in size, so X has no fixed number of features
        return tags


class TrainedEstimator(ImageEstimator):
    """An estimator that passes its parameters to `paucal.train`; each fit is a run."""

    device: str | None
    random_state: Any
    runs: str | Path
    settings: Mapping[str, Any] | None

    def _train(self, images: Sequence[Any], column: str, values: Sequence[Any], **fixed: Any) -> None:
        """Train on images with one class or target value each, and store the path of the run folder in `run_`."""
        table = store_columns({"image": images, column: values})
        folder = create_next_numbered(Path(self.runs)).resolve()
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name not in NOT_SETTINGS}
        chosen_settings = {name: value for name, value in parameters.items() if value is not None}
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        defaults = {"seed": int(seed), "test_fraction": MIN_TEST_FRACTION}
        train(**table, **{**defaults, **chosen_settings, **(self.settings or {})}, **fixed, output=folder)
        self.run_, self._loaded = str(folder), []

    def _load(self) -> TrainedModel:
        return load_trained(self.run_, self.device or "cpu")
