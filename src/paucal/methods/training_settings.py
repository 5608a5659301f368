"""The settings of `paucal train`: settings of all runs, and settings of each method."""

from dataclasses import dataclass

from paucal.methods.distillation.settings import DistillationSettings
from paucal.methods.drloc.settings import DrLocSettings
from paucal.methods.locality.settings import LocalitySettings
from paucal.methods.names import EXTRA_LOSSES, TRAINING_METHODS, describe_names
from paucal.methods.token_labeling.settings import TokenLabelingSettings
from paucal.settings.options import option
from paucal.settings.shared import JobSettings, LabelledDataSettings
from paucal.settings.supervised import (
    AugmentationSettings,
    BalanceSettings,
    FineTuningSettings,
    SplitSettings,
    SyncBatchNormSettings,
    TrainScheduleSettings,
)

# Method of a run that chooses pretrained weights, if the user gave no method. For these weights, the default method has
# shown no gain.
TUNING_METHOD = "supervised"


@dataclass(frozen=True)
class MethodSettings(DrLocSettings, LocalitySettings, DistillationSettings, TokenLabelingSettings):
    """The training method, the extra losses, and the options of all methods and losses."""

    help_group = "method"
    method: str = option(
        f"training method; {TUNING_METHOD} instead of the default if the run chooses pretrained weights: "
        f"{describe_names(TRAINING_METHODS)}",
        "drloc",
    )
    add: list[str] | None = option(f"extra losses besides the method's own: {describe_names(EXTRA_LOSSES)}")


@dataclass(frozen=True)
class TrainSettings(
    SyncBatchNormSettings,
    AugmentationSettings,
    TrainScheduleSettings,
    MethodSettings,
    FineTuningSettings,
    BalanceSettings,
    SplitSettings,
    LabelledDataSettings,
    JobSettings,
):
    """Every setting of `paucal train`, on the command line and in `paucal.train`."""

    help_group = "data"
    curve: bool = option(
        "measure the accuracy of the first model against images per class, and forecast the accuracy for twice as many "
        "images; always done if there are no validation images",
        False,
    )
    unlabelled: str | None = option(
        "additional images without labels to learn from: a folder to any depth, zip or tar, table, Parquet or a "
        "published set; several places joined by ':'; only used if they improve the cross-validated score"
    )
    target: str | None = option("column of a table with a number for each image, which is predicted instead of a class")
    ordinal: bool = option(
        "with --target: the values are grades, a few consecutive whole numbers; predict a grade, and a probability for "
        "each grade",
        False,
    )
