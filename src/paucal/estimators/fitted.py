"""Common parts of paucal's estimators: a network that is loaded on first use, its features, and fits that are runs."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, TransformerTags, check_random_state
from sklearn.utils.validation import check_is_fitted

from paucal.estimators.inputs import EXPECTED, Images, list_images
from paucal.models.trained import TrainedModel, load_trained
from paucal.runner.frames import store_columns
from paucal.runs.folder import next_numbered
from paucal.tasks.train import train
from paucal.verbs.predict.launch import predict

MIN_TESTED = 1e-6  # share of the images that a run keeps for its own test: one, or one of each class
OWN = ("random_state", "runs", "settings")  # parameters that are not settings of `paucal.train`


class ImageEstimator(BaseEstimator):
    """An estimator with a trained network; a copy or a pickle of the estimator loads the network again."""

    _loaded: list[TrainedModel]  # empty before first use; a list, so that predicting sets no attribute

    @abstractmethod
    def _load(self) -> TrainedModel:
        """Return the network of the fitted estimator."""

    def _network(self) -> TrainedModel:
        check_is_fitted(self)
        if not self._loaded:
            self._loaded.append(self._load())
        return self._loaded[0]

    def _ask(self, X: Images, **options: Any) -> Any:
        """Return the network's prediction for each image of X."""
        network, images = self._network(), list_images(X)
        rows = predict(network, images, **options)
        if len(rows) != len(images):  # a folder or a table among the paths
            raise ValueError(f"X has {len(images)} entries that hold {len(rows)} images, {EXPECTED}.")
        return rows

    def transform(self, X: Images) -> NDArray[np.float32]:
        """Return the (N, D) inputs of the network's last layer, as features for other estimators."""
        rows = self._ask(X, features=True)
        return np.stack([row.features.numpy() for row in rows if row.features is not None])

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {**state, **({"_loaded": []} if "_loaded" in state else {})}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array, tags.input_tags.string = False, True, True
        tags.transformer_tags = TransformerTags(preserves_dtype=[])  # features are float32
        tags.no_validation = True  # images may differ in size, so there is no number of features
        return tags


class TrainedEstimator(ImageEstimator):
    """An estimator whose fits are runs of `paucal.train`, with its parameters as settings."""

    device: str | None
    random_state: Any
    runs: str | Path
    settings: Mapping[str, Any] | None

    def _train(self, images: Sequence[Any], column: str, values: Sequence[Any], **fixed: Any) -> None:
        """Train on images with a column of classes or numbers, and keep the folder of the run."""
        table = store_columns({"image": images, column: values})
        folder = next_numbered(Path(self.runs)).resolve()
        parameters = self.get_params(deep=False).items()
        own_settings = {name: value for name, value in parameters if value is not None and name not in OWN}
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        run_settings = {"seed": int(seed), "test_fraction": MIN_TESTED, **own_settings, **(self.settings or {})}
        train(**table, **run_settings, **fixed, output=folder)
        self.run_, self._loaded = str(folder), []

    def _load(self) -> TrainedModel:
        return load_trained(self.run_, self.device or "cpu")
