"""`paucal.ImageRegressor`: regression with `paucal.train` as a scikit-learn estimator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from paucal.estimators.fitted import Images, TrainedEstimator, list_images
from paucal.tasks.regression.images import MIN_TARGETS


class ImageRegressor(RegressorMixin, TrainedEstimator):
    """An image regressor with scikit-learn's estimator interface; each fit is a run of `paucal.train`.

    X contains at least ten paths, PIL images or uint8 arrays. A fit trains on all images except one test image. Since
    the test score on one image is unreliable, evaluate the estimator on other images, as `cross_val_score` does.

    A fitted estimator stores the path of its run, so a pickled estimator can be loaded as long as the run folder
    exists.

    Args:
        ordinal: Whether the target values are grades, that is, a few integers in order.
        model: timm name of the backbone.
        init: Initial weights of the backbone: a run folder, a file or "timm"; None for trained weights on this machine.
        img_size: Side of the images in pixels.
        device: "cpu", "cuda" or "mps".
        workers: Number of processes that load images.
        random_state: Seed, or a NumPy `RandomState` that draws the seed; None for a new seed at each fit.
        runs: Folder in which each fit creates a numbered run folder.
        settings: Other settings of `paucal.train` by name.

    Attributes:
        run_: Path of the run folder.

    Example:
        >>> model = paucal.ImageRegressor().fit(paths, ages)  # doctest: +SKIP
        >>> model.predict(new_paths), model.predict_interval(new_paths)  # doctest: +SKIP
        (array([31.2]), array([[22.1, 40.3]]))
    """

    def __init__(  # noqa: PLR0913 (scikit-learn reads the parameters from the signature)
        self,
        ordinal: bool = False,
        *,
        model: str | None = None,
        init: str | None = None,
        img_size: int | None = None,
        device: str | None = None,
        workers: int | None = None,
        random_state: Any = 0,
        runs: str | Path = "runs",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.ordinal = ordinal
        self.model = model
        self.init = init
        self.img_size = img_size
        self.device = device
        self.workers = workers
        self.random_state = random_state
        self.runs = runs
        self.settings = settings

    def fit(self, X: Images, y: Any) -> Self:
        """Train on images X with their target values y.

        Raises:
            ValueError: X is not a list of at least ten images, or a value of y is not a finite number.
            UserError: A setting is invalid.
        """
        images = list_images(X)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        target_values = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype="numeric", input_name="y")
        check_consistent_length(images, target_values)
        if len(images) < MIN_TARGETS:
            raise ValueError(f"X has too few images (n_samples = {len(images)}), at least {MIN_TARGETS} are needed.")
        self._train(images, "target", target_values.astype(np.float64).tolist(), target="target")
        return self

    def predict(self, X: Images) -> NDArray[np.float64]:
        """Return the (N,) predicted target values."""
        return self._predict_intervals(X)[0]

    def predict_interval(self, X: Images) -> NDArray[np.float64]:
        """Return the (N, 2) ends of 90 % prediction intervals; infinite if there were too few training images."""
        return self._predict_intervals(X)[1:].T

    def _predict_intervals(self, X: Images) -> NDArray[np.float64]:
        """Return a (3, N) array: the predictions, and the lower and upper ends of their intervals."""
        return np.array([[entry.predicted, entry.low, entry.high] for entry in self._predict_all(X)]).T
