"""The flags of VISReg."""

from dataclasses import dataclass

from paucal.methods.lejepa.settings import ProjectorSettings
from paucal.settings.options import option


@dataclass(frozen=True)
class VisRegSettings(ProjectorSettings):
    """Options of VISReg (arXiv:2606.02572)."""

    help_group = "method"
    visreg_weight: float = option(
        "weight of the term that keeps embeddings normally distributed, as a fraction of the loss", 0.02, low=0, high=1
    )
    visreg_directions: int = option("random directions along which the embeddings are tested", 256, low=1, high=1 << 16)
    visreg_dim: int = option("width of the embeddings that are compared", 512, low=1, high=1 << 16)
