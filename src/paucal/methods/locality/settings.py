"""The flags of locality guidance."""

from dataclasses import dataclass

from paucal.settings.options import option


@dataclass(frozen=True)
class LocalitySettings:
    """Options of locality guidance (Li et al., ECCV 2022)."""

    help_group = "method"
    guide: str | None = option("run of a small CNN whose feature maps the blocks imitate with --add locality")
    guide_weight: float = option("weight of the loss of --add locality", low=0)
