"""The settings of `paucal pretrain`: settings of all runs, and settings of each method."""

from dataclasses import dataclass

from paucal.methods.diet.settings import DietSettings
from paucal.methods.lejepa.settings import LeJepaSettings
from paucal.methods.names import PRETRAINING_METHODS, describe_names
from paucal.methods.self_distillation.settings import SelfDistillationSettings
from paucal.methods.visreg.settings import VisRegSettings
from paucal.settings.crops import CropSettings, MonitorSettings, PretrainScheduleSettings
from paucal.settings.options import option
from paucal.settings.shared import DATA_HELP, JobSettings


@dataclass(frozen=True)
class MethodSettings(DietSettings, VisRegSettings, LeJepaSettings, SelfDistillationSettings):
    """The pre-training method, and the options of all methods."""

    method: str = option(
        f"pre-training method: {describe_names(PRETRAINING_METHODS)}", "self-distillation", group="method"
    )


@dataclass(frozen=True)
class PretrainSettings(  # type: ignore[reportIncompatibleVariableOverride] (a number, never "auto")
    MonitorSettings, PretrainScheduleSettings, MethodSettings, CropSettings, JobSettings
):
    """Every setting of `paucal pretrain`, on the command line and in `paucal.pretrain`."""

    data: str = option(
        f"{DATA_HELP}; folders are searched to any depth, and labels are not used",
        "digits",
        group="data",
    )
    img_size: list[int] = option("side of the global crops in pixels, or height and width", group="crops")
