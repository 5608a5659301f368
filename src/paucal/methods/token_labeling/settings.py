"""The flags of token labeling."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option


@dataclass(frozen=True)
class TokenLabelingSettings:
    """Options of token labeling (Jiang et al., NeurIPS 2021) and ReLabel."""

    help_group = "method"
    labels: str | None = option("folder of label maps from 'paucal label'")
    token_preset: Literal["paper", "reference"] = option(
        "version of token labeling: the paper's formula or the published program's", "paper"
    )
    token_weight: float | None = option("weight of the token loss", low=0)
    no_mix_token: bool = option("switch off MixToken, which exchanges boxes of tokens between images", False)
