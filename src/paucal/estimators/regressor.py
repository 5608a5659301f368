"""`paucal.ImageRegressor`: `paucal.train` with a target as an estimator of scikit-learn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from paucal.estimators.fitted import TrainedEstimator
from paucal.estimators.inputs import Images, list_images
from paucal.tasks.regression.images import MIN_NUMBERED


class ImageRegressor(RegressorMixin, TrainedEstimator):
    """Predicts a number for each image, under scikit-learn's contract; each fit is a run of `paucal.train`.

    X holds paths, PIL images or uint8 arrays, at least ten. A fit keeps one of them for the run's own report; evaluate
    the estimator on other images, as `cross_val_score` does. A fitted estimator holds the path of its run, so it can be
    pickled as long as the folder exists.

    Args:
        ordinal: Whether the numbers are grades: a few whole numbers in order.
        model: timm name of the backbone.
        init: Weights whose features are used: a run folder, a file or "timm"; None for trained weights on this machine.
        img_size: Side of the images in pixels.
        device: "cpu", "cuda" or "mps".
        workers: Processes that load images.
        random_state: Seed, or generator that draws one; None for a new one at each fit.
        runs: Folder of the run folders, which are numbered.
        settings: Further settings of `paucal.train` by name.

    Attributes:
        run_: Folder of the run.

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
        """Fit the regression to images X with one number each.

        Raises:
            ValueError: X is not a list of at least ten images, or y holds anything but finite numbers.
            UserError: A setting is invalid.
        """
        images = list_images(X)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        numbers = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype="numeric", input_name="y")
        check_consistent_length(images, numbers)
        if len(images) < MIN_NUMBERED:
            raise ValueError(f"X has too few images (n_samples = {len(images)}), at least {MIN_NUMBERED} are needed.")
        self._train(images, "target", numbers.astype(np.float64).tolist(), target="target")
        return self

    def predict(self, X: Images) -> NDArray[np.float64]:
        """Return the (N,) predicted numbers."""
        return self._predict_intervals(X)[0]

    def predict_interval(self, X: Images) -> NDArray[np.float64]:
        """Return the (N, 2) ends of 90 % prediction intervals; infinite after a fit to very few images."""
        return self._predict_intervals(X)[1:].T

    def _predict_intervals(self, X: Images) -> NDArray[np.float64]:
        """Return (3, N) predictions, and lower and upper ends of their intervals."""
        return np.array([[row.predicted, row.low, row.high] for row in self._ask(X)]).T
