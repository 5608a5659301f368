"""The flags of token labeling."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option


@dataclass(frozen=True)
class TokenLabelingSettings:
    """Options of token labeling (Jiang et al., NeurIPS 2021) and ReLabel."""

    labels: str | None = option("folder of label maps from 'paucal label'", group="method")
    token_preset: Literal["paper", "reference"] = option(
        "version of token labeling: the paper's formula or the published program's", "paper", group="method"
    )
    token_weight: float | None = option("weight of the token loss", group="method", low=0)
    no_mix_token: bool = option(
        "switch off MixToken, which exchanges boxes of tokens between images", False, group="method"
    )
