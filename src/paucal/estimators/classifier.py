"""`paucal.ImageClassifier`: `paucal.train` and `paucal.predict` as a scikit-learn estimator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from paucal.data.classes import plain_if_distinct
from paucal.data.sources.labels import is_missing
from paucal.estimators.fitted import Images, TrainedEstimator, list_images


def name_classes(classes: NDArray[Any]) -> list[str]:
    """Return a name for each class: the class as text, or "class_0", "class_1", ... if a table would change a name."""
    names = [str(name) for name in classes]
    is_plain = list(plain_if_distinct(names)) == names and not any(is_missing(name) for name in names)
    if is_plain and len({name.strip() for name in names}) == len(names) and all(name == name.strip() for name in names):
        return names
    return [f"class_{number}" for number in range(len(names))]


class ImageClassifier(ClassifierMixin, TrainedEstimator):
    """An image classifier with scikit-learn's estimator interface; each fit is a run of `paucal.train`.

    X contains paths, PIL images or uint8 arrays. A fit holds out the validation images, which select the model, and one
    test image of each class, and trains on all other images. Since the test score on so few images is unreliable,
    evaluate the estimator on other images, as `cross_val_score` does. Settings that are None are chosen from the
    images.

    A fitted estimator stores the path of its run and loads the model on first use, so it can be pickled and copied to
    other processes, as long as the run folder exists.

    Args:
        time: Training time of a fit, such as "5m"; None for 15 minutes.
        epochs: Number of epochs, in place of `time`; 0 trains only a linear classifier on frozen features.
        model: timm name of the backbone.
        init: Initial weights: a run folder, a file, "timm" or "none".
        img_size: Side of the images in pixels.
        lr: Peak learning rate.
        method: Training method.
        val_fraction: Fraction of the images used for validation; 0 for no validation.
        device: "cpu", "cuda" or "mps".
        workers: Number of processes that load images.
        random_state: Seed, or a NumPy `RandomState` that draws the seed; None for a new seed at each fit.
        runs: Folder in which each fit creates a numbered run folder.
        settings: Other settings of `paucal.train` by name.

    Attributes:
        classes_: (K,) classes in the order of the probabilities.
        run_: Path of the run folder.

    Example:
        >>> model = paucal.ImageClassifier(time="5m").fit(paths, labels)  # doctest: +SKIP
        >>> model.predict(new_paths)  # doctest: +SKIP
        array(['cat', 'dog'], dtype='<U3')
    """

    def __init__(  # noqa: PLR0913 (scikit-learn reads the parameters from the signature)
        self,
        time: str | None = None,
        *,
        epochs: int | None = None,
        model: str | None = None,
        init: str | None = None,
        img_size: int | None = None,
        lr: float | None = None,
        method: str | None = None,
        val_fraction: float | None = None,
        device: str | None = None,
        workers: int | None = None,
        random_state: Any = 0,
        runs: str | Path = "runs",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.time = time
        self.epochs = epochs
        self.model = model
        self.init = init
        self.img_size = img_size
        self.lr = lr
        self.method = method
        self.val_fraction = val_fraction
        self.device = device
        self.workers = workers
        self.random_state = random_state
        self.runs = runs
        self.settings = settings

    def fit(self, X: Images, y: Any) -> Self:
        """Train on images X with their classes y.

        Raises:
            ValueError: X is not a list of images, or y has fewer than two classes.
            UserError: A setting is invalid, or a class has too few images.
        """
        images = list_images(X)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(images, labels)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {str(self.classes_[0])!r}, expected at least two.")
        names = name_classes(self.classes_)
        image_labels = [names[number] for number in numbers]
        self._train(images, "label", image_labels, label_column="label", label_separator="none")
        return self

    def predict_proba(self, X: Images) -> NDArray[np.float64]:
        """Return the (N, K) class probabilities in the order of `classes_`."""
        probabilities = np.stack([prediction.shares.numpy() for prediction in self._predict_all(X)])
        model_classes = list(self._network().classes)
        return probabilities[:, [model_classes.index(name) for name in name_classes(self.classes_)]].astype(np.float64)

    def predict(self, X: Images) -> NDArray[Any]:
        """Return the (N,) most probable classes."""
        most_probable = self.predict_proba(X).argmax(1)
        return self.classes_[most_probable]
