"""The settings of `paucal eval`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.groups import FORWARD_PRECISION_HELP, ForwardPrecision, LabelledDataSettings
from paucal.settings.options import MAX_COUNT, option
from paucal.settings.parts import FractionSettings

_GROUP = "frozen features"
Choice = Literal["classification", "knn", "linear", "logistic", "correspondence", "few-labels"]


@dataclass(frozen=True)
class OpeningSettings(FractionSettings, LabelledDataSettings):
    """How the images of DATA are opened."""


@dataclass(frozen=True)
class ScoringSettings:
    """The predictions to score, and the folder for the results."""

    protocol: list[Choice] | None = option(
        "any of classification, knn, linear, logistic, correspondence, few-labels; by default classification",
        group="evaluation",
    )
    part: Literal["train", "val", "test"] | None = option(
        "part of the run's images, or of DATA that has parts; by default test, and all images of DATA without parts",
        group="evaluation",
    )
    mirror: bool = option(
        "classifiers and segmentation: average the predictions for an image and its mirror image; takes twice the time",
        False,
        group="evaluation",
    )
    scales: list[float] | None = option(
        "segmentation: image scales over which predictions are averaged, such as 0.75 1 1.25; by default the run's",
        group="evaluation",
    )
    real_labels: str | None = option(
        "JSON list with the correct class numbers of each image, as published for ImageNet (ReaL); adds an accuracy",
        group="evaluation",
    )
    output: str | None = option("folder for the results; by default in the run", group="evaluation")
    batch_size: int | None = option("images per forward pass", group="evaluation", low=1, high=1 << 20, chosen=True)
    workers: int = option("processes that load images", 0, group="evaluation", low=0, high=64)
    device: str = option("cpu, cuda or mps", "cpu", group="evaluation")
    precision: ForwardPrecision | None = option(
        f"{FORWARD_PRECISION_HELP}; for the run's own images float32, as in training", group="evaluation", chosen=True
    )


@dataclass(frozen=True)
class FrozenSettings:
    """Every setting of the protocols on frozen features."""

    compare: list[str] | None = option(
        "other models to evaluate on the same test images, each in a column of the table", None, group=_GROUP
    )
    model: str | None = option("timm model of a weights file", None, group=_GROUP)
    network: str | None = option(
        "which network of a weights file with several: teacher, student, ...", None, group=_GROUP
    )
    pretrained: bool = option("use a timm model's published weights, not random ones", False, group=_GROUP)
    img_size: list[int] | None = option(
        "image side, or height and width, for a weights file or timm model", None, group=_GROUP
    )
    no_floor: bool = option("do not evaluate the same architecture with random weights", False, group=_GROUP)
    features: str = option(
        "auto, pooled, the last blocks or stages (blocks:4, stages:2), or class token and mean of patches (class+mean)",
        "auto",
        group=_GROUP,
    )
    feature_dtype: Literal["float32", "float16"] = option("precision of stored features", "float32", group=_GROUP)
    cache: str | None = option("folder of stored features; by default in the user's cache", None, group=_GROUP)
    no_cache: bool = option("do not store features", False, group=_GROUP)
    metric: Literal["accuracy", "mean_per_class", "roc_auc"] | None = option(
        "score of linear and logistic; by default accuracy, or for the sets of table9 the score of that table",
        None,
        group=_GROUP,
    )
    max_images: int | None = option("largest number of images per part", None, group=_GROUP, low=1, high=MAX_COUNT)
    augment: bool = option("linear probe: new augmented views in every epoch, as published (slow)", False, group=_GROUP)
    probe_epochs: int = option(
        "linear probe: passes over the training images", 100, group=_GROUP, low=1, high=1_000_000
    )
    solver: Literal["auto", "sklearn", "torch"] = option(
        "logistic: solver; torch uses the model's device; auto is torch on a GPU", "auto", group=_GROUP
    )
    bootstrap: int = option("number of bootstrap samples for an interval", 1000, group=_GROUP, low=2, high=1_000_000)
    seed: int = option(
        "seed of random weights, splits, few labels, second views and resampling", 0, group=_GROUP, low=0, high=2**62
    )


@dataclass(frozen=True)
class EvalSettings(FrozenSettings, ScoringSettings, OpeningSettings):
    """Every setting of `paucal eval`; the command line and `paucal.evaluate` share it."""

    @property
    def protocols(self) -> list[Choice]:
        """The requested protocols, by default classification."""
        return self.protocol or ["classification"]
