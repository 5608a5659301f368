"""The settings of `paucal explain`, and which views use each setting."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.types import UserError

VIEWS = (
    *("attribution", "attention", "rollout", "features", "head-tokens", "entropy", "matches", "tokens"),
    "localization",
)


@dataclass(frozen=True)
class ExplanationSettings:
    """What to explain, and how."""

    help_group = "explanation"
    show: list[str] = option(
        "views to draw: attribution, attention, rollout, features, head-tokens, entropy, matches, tokens, localization",
        ["attribution"],
    )
    method: str = option("attribution method; auto: the best method for the model's architecture", "auto")
    explain_class: list[str] | None = option("names of the classes to explain (default: the most probable classes)")
    top: int = option("number of most probable classes to explain side by side", 2, low=1, high=8)
    layer: list[int | str] | None = option(
        "attention layers, by name or number from 1, or 'all' (default: the last layer; for --show head-tokens four "
        "layers spread over the depth)"
    )
    token: list[str] | None = option(
        "query tokens of the attention, each drawn in its own row: a token's name, or ROW,COLUMN of a patch, from 0"
    )
    teacher: str | None = option("run or timm model whose token labels are drawn beside the model's")
    against: list[str] = option(
        "runs or timm models whose head entropies are drawn beside the model's, for --show entropy", []
    )


@dataclass(frozen=True)
class FigureSettings:
    """The figures, and how they are computed."""

    help_group = "pictures"
    output: str | None = option("folder for the figures (default: next number in explanations/)")
    format: Literal["png", "svg", "both"] = option("format of the figures", "png")
    batch_size: int = option("images per forward pass", 16, low=1, high=1 << 16)
    device: str = option("cpu, cuda or mps", "cpu")
    on_bad_image: Literal["refuse", "skip"] = option("how to handle unreadable images", "refuse")


@dataclass(frozen=True)
class ExplainSettings(FigureSettings, ExplanationSettings):
    """All settings of `paucal explain`, used by the command line and by `paucal.explain_images`."""


PATCH_POSITION = re.compile(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\s*")  # value ROW,COLUMN of --token

# For each setting, its effect (a clause for messages) and the views that use the setting.
_USED_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    "explain_class": ("chooses the classes of the attribution", ("attribution",)),
    "layer": ("chooses the layers of the attention", ("attention", "head-tokens")),
    "token": ("chooses query tokens of the attention, or a patch of the localization", ("attention", "localization")),
    "teacher": ("draws a teacher's token labels", ("tokens",)),
    "against": ("compares the entropy of heads", ("entropy",)),
}


def require_used_settings(views: Sequence[str], settings: ExplainSettings) -> None:
    """Raise a UserError for a setting that no requested view uses."""
    for name, (effect, users) in _USED_BY.items():
        if getattr(settings, name) and not set(users) & set(views):
            raise UserError(f"--{name.replace('_', '-')} {effect}: add --show {' or '.join(users)}.")
    if settings.method != "auto" and "attribution" not in views:
        raise UserError("--method chooses how the attribution is computed: add --show attribution.")
    if settings.token and "attention" not in views and not any(map(PATCH_POSITION.fullmatch, settings.token)):
        raise UserError(f"--token is {settings.token[0]!r}, but the localization needs a patch: give ROW,COLUMN.")
