"""The settings of `paucal eval`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import MAX_IMAGES, option
from paucal.settings.shared import FORWARD_PRECISION_HELP, ForwardPrecision, FractionSettings, LabelledDataSettings

Choice = Literal["classification", "knn", "linear", "logistic", "correspondence", "few-labels"]


@dataclass(frozen=True)
class OpeningSettings(FractionSettings, LabelledDataSettings):
    """Settings for opening the images of DATA."""


@dataclass(frozen=True)
class ScoringSettings:
    """Settings of an evaluation: the images, the predictions to score, and the folder for the results."""

    help_group = "evaluation"
    protocol: list[Choice] | None = option(
        "any of classification, knn, linear, logistic, correspondence, few-labels (default: classification)"
    )
    part: Literal["train", "val", "test"] | None = option(
        "split of the run's images, or of DATA (default: test, or all images of DATA if it has no splits)"
    )
    mirror: bool = option(
        "classifiers and segmentation: average the predictions for an image and its mirror image; takes twice the time",
        False,
    )
    scales: list[float] | None = option(
        "segmentation: image scales over which predictions are averaged, such as 0.75 1 1.25 (default: as in the run)"
    )
    real_labels: str | None = option(
        "JSON list with the correct class numbers of each image, as published for ImageNet (ReaL); adds an accuracy"
    )
    output: str | None = option("folder for the results (default: a subfolder of the run)")
    batch_size: int | None = option("images per forward pass", low=1, high=1 << 20, chosen=True)
    workers: int = option("processes that load images", 0, low=0, high=64)
    device: str = option("cpu, cuda or mps", "cpu")
    precision: ForwardPrecision | None = option(
        f"{FORWARD_PRECISION_HELP}; float32 for the run's own images, as in training", chosen=True
    )


@dataclass(frozen=True)
class FrozenSettings:
    """Every setting of the evaluation protocols on frozen features."""

    help_group = "frozen features"
    compare: list[str] | None = option(
        "other models to evaluate on the same test images; each has a column in the table", None
    )
    model: str | None = option("name of the timm model that a weights file is for", None)
    network: str | None = option("network to use, if a weights file has several: teacher, student, ...", None)
    pretrained: bool = option("use a timm model's published weights instead of random weights", False)
    img_size: list[int] | None = option("image side, or height and width, for a weights file or timm model", None)
    no_floor: bool = option("do not evaluate the same architecture with random weights", False)
    features: str = option(
        "auto, pooled, last blocks or stages (blocks:4, stages:2), or class token and mean of patches (class+mean)",
        "auto",
    )
    feature_dtype: Literal["float32", "float16"] = option("precision of stored features", "float32")
    cache: str | None = option("folder of stored features (default: in the user's cache folder)", None)
    no_cache: bool = option("do not store features", False)
    metric: Literal["accuracy", "mean_per_class", "roc_auc"] | None = option(
        "score of linear and logistic (default: accuracy, or for the data sets of table9 the score in that table)", None
    )
    max_images: int | None = option("largest number of images per split", None, low=1, high=MAX_IMAGES)
    augment: bool = option("linear probe: new augmented views in every epoch, as published (slow)", False)
    probe_epochs: int = option("linear probe: number of epochs", 100, low=1, high=1_000_000)
    solver: Literal["auto", "sklearn", "torch"] = option(
        "logistic: solver; torch runs on the model's device; auto: torch on a GPU, else sklearn", "auto"
    )
    bootstrap: int = option("number of bootstrap samples for an interval", 1000, low=2, high=1_000_000)
    seed: int = option("seed of random weights, splits, few labels, second views and resampling", 0, low=0, high=2**62)


@dataclass(frozen=True)
class EvalSettings(FrozenSettings, ScoringSettings, OpeningSettings):
    """All settings of `paucal eval`, used by the command line and by `paucal.evaluate`."""

    @property
    def protocols(self) -> list[Choice]:
        """The requested protocols; classification by default."""
        return self.protocol or ["classification"]
