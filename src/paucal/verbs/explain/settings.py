"""The settings of `paucal explain`, and the views that use each of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.types import UserError

_GROUP, _PICTURES = "explanation", "pictures"
VIEWS = (
    *("attribution", "attention", "rollout", "features", "head-tokens", "entropy", "matches", "tokens"),
    "localization",
)


@dataclass(frozen=True)
class ExplainSettings:
    """Every setting of `paucal explain`; the command line and `paucal.explain_images` share it."""

    show: list[str] | None = option(
        "views to draw: attribution, attention, rollout, features, head-tokens, entropy, matches, tokens, localization "
        "(default: attribution)",
        group=_GROUP,
    )
    method: str = option("method of attribution; auto: the best one for the model's family", "auto", group=_GROUP)
    explain_class: list[str] | None = option("classes to explain, by name (default: the likeliest)", group=_GROUP)
    top: int = option("number of the likeliest classes to explain side by side", 2, group=_GROUP, low=1, high=8)
    layer: list[int | str] | None = option(
        "attention layers, by their names or numbers from 1, or 'all' (default: the last; for --show head-tokens four "
        "spread over the depth)",
        group=_GROUP,
    )
    token: list[str] | None = option(
        "queries of the attention, a row for each: a token's name, or ROW,COLUMN from 0", group=_GROUP
    )
    teacher: str | None = option("run or timm model whose token labels are drawn beside the model's", group=_GROUP)
    against: list[str] | None = option(
        "runs or timm models whose head entropies are drawn beside the model's, for --show entropy", group=_GROUP
    )
    output: str | None = option("folder for the pictures (default: the next free in explanations/)", group=_PICTURES)
    format: Literal["png", "svg", "both"] = option("format of the pictures", "png", group=_PICTURES)
    batch_size: int = option("images per forward pass", 16, group=_PICTURES, low=1, high=1 << 16)
    device: str = option("cpu, cuda or mps", "cpu", group=_PICTURES)
    on_bad_image: Literal["refuse", "skip"] = option("unreadable images", "refuse", group=_PICTURES)


CELL = re.compile(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\s*")  # --token as ROW,COLUMN

# For each setting, its effect as a clause and the views that use it.
_USED_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    "explain_class": ("chooses the classes of the attribution", ("attribution",)),
    "layer": ("chooses the layers of the attention", ("attention", "head-tokens")),
    "token": ("chooses queries of the attention, or a cell of the localization", ("attention", "localization")),
    "teacher": ("draws a teacher's token labels", ("tokens",)),
    "against": ("compares the entropy of heads", ("entropy",)),
}


def require_use(views: Sequence[str], settings: ExplainSettings) -> None:
    """Raise a UserError for a setting that none of the views uses."""
    for name, (effect, users) in _USED_BY.items():
        if getattr(settings, name) is not None and not set(users) & set(views):
            raise UserError(f"--{name.replace('_', '-')} {effect}: add --show {' or '.join(users)}.")
    if settings.method != "auto" and "attribution" not in views:
        raise UserError("--method chooses how the attribution is computed: add --show attribution.")
    if settings.token and "attention" not in views and not any(map(CELL.fullmatch, settings.token)):
        raise UserError(f"--token is {settings.token[0]!r}, but the localization needs a cell: give ROW,COLUMN.")
