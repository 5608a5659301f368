"""The flags of DIET."""

from dataclasses import dataclass

from paucal.methods.lejepa.settings import ContinuedSettings
from paucal.settings.options import option


@dataclass(frozen=True)
class DietSettings(ContinuedSettings):
    """Options of DIET (arXiv:2302.10260) and DIET-CP (arXiv:2509.06990)."""

    help_group = "method"
    diet_smoothing: float = option("label smoothing of the images' own classes", 0.8, low=0, high=0.999)
    diet_classes: int = option(
        "maximum number of classes; if there are more images, several images share a class", low=2, high=1 << 20
    )
