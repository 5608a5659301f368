"""`paucal.ImageEmbedder`: features of a trained network as a scikit-learn transformer."""

from typing import Any, Self

from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags

from paucal.estimators.fitted import ImageEstimator, Images, list_images
from paucal.models.named import open_named
from paucal.models.trained import TrainedModel
from paucal.runner.initial_weights import WEIGHTS_HELP
from paucal.types import UserError
from paucal.verbs.check.labels import find_local_weights


class ImageEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ImageEstimator):
    """Transforms images to feature vectors: the inputs of the classification layer of a frozen network.

    X contains paths, PIL images or uint8 arrays. Copies and pickles of the estimator store only the name of the network
    and load the network again on first use.

    Args:
        model: Run folder, or timm name of a network with published weights; None for any trained weights on this
            machine.
        img_size: Side of the images in pixels; None for the default of the network.
        device: "cpu", "cuda" or "mps".

    Attributes:
        model_: Run folder or name of the network.
        n_features_out_: Number of features D.

    Example:
        >>> pipeline = make_pipeline(paucal.ImageEmbedder(), LogisticRegression())  # doctest: +SKIP
        >>> pipeline.fit(paths, labels).score(new_paths, new_labels)  # doctest: +SKIP
        0.91
    """

    def __init__(self, model: str | None = None, *, img_size: int | None = None, device: str = "cpu") -> None:
        self.model = model
        self.img_size = img_size
        self.device = device

    def fit(self, X: Images, y: Any = None) -> Self:
        """Load the network; the images are not used for training.

        Raises:
            ValueError: X is not a list of images.
            UserError: The model does not exist, or this machine has no pretrained weights.
        """
        images = list_images(X)
        name = self.model or getattr(find_local_weights(), "name", None)
        if name is None:
            raise UserError(f"there are no trained weights on this machine; {WEIGHTS_HELP}, or set model=.")
        self.model_, self._loaded = str(name), []
        self.n_features_out_ = self.transform(images[:1]).shape[1]
        return self

    @property
    def _n_features_out(self) -> int:
        return self.n_features_out_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # features are float32
        return tags

    def _load(self) -> TrainedModel:
        size = None if self.img_size is None else [self.img_size]
        return open_named(self.model_, self.device, size, "model")
