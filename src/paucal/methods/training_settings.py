"""The settings of `paucal train`: settings of all runs, and settings of each method."""

from dataclasses import dataclass

from paucal.methods.distillation.settings import DistillationSettings
from paucal.methods.drloc.settings import DrLocSettings
from paucal.methods.locality.settings import LocalitySettings
from paucal.methods.token_labeling.settings import TokenLabelingSettings
from paucal.settings.groups import JobSettings, LabelledDataSettings
from paucal.settings.options import option
from paucal.settings.parts import (
    AugmentationSettings,
    BalanceSettings,
    FineTuningSettings,
    SplitSettings,
    SyncBatchNormSettings,
    TrainScheduleSettings,
)


@dataclass(frozen=True)
class MethodSettings(DrLocSettings, LocalitySettings, DistillationSettings, TokenLabelingSettings):
    """The training method, the extra losses, and the options of all methods and losses."""

    method: str = option("training method", "drloc", group="method")
    add: list[str] | None = option("extra losses in addition to the method's own", group="method")


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
    """Every setting of `paucal train`; the command line and `paucal.train` share it."""

    data: str = option(
        "folder, zip or tar, CSV, list file, Parquet file or folder, hf:OWNER/NAME, a published set such as 'cifar10', "
        "or 'digits'; several places joined by ':' (';' on Windows)",
        "digits",
        group="data",
    )
    curve: bool = option(
        "measure accuracy against images per class with the first model, and forecast it for twice as many; "
        "always done without validation images",
        False,
        group="data",
    )
    unlabelled: str | None = option(
        "additional images without labels to learn from: a folder to any depth, zip or tar, table, Parquet or a "
        "published set; several places joined by ':'; only used if cross-validation prefers it",
        group="data",
    )
    target: str | None = option(
        "column of a table with a number for each image, which is predicted instead of a class", group="data"
    )
    ordinal: bool = option(
        "with --target: the numbers are grades, few whole numbers in order; predict one, with a probability for each",
        False,
        group="data",
    )
