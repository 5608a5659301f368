"""What a DHVT is made of: every part that the paper takes away or replaces, as one option each."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Norm = Literal["batch", "layer"]
Local = Literal["conv", "pool", "none"]
Aggregate = Literal["cls", "all", "none"]


@dataclass(frozen=True)
class DhvtParts:
    """The options of a DHVT, all of JSON types; the defaults are the paper's model.

    With `sope`, `daff` and `head_tokens` off and `abs_pos` on it is the plain ViT that the paper compares with, with
    timm's tensor names. `studies/published/dhvt.yaml` says which options make which published row.

    Attributes:
        sope: sequential overlapping patch embedding (a stack of 3x3 convolutions of stride 2); else one linear
            projection per patch.
        sope_norm: norm after each convolution of SOPE.
        pre_affine: scale and shift of the image's channels before the convolutions of SOPE.
        post_affine: scale and shift of the tokens' channels after them.
        head_tokens: one token per attention head, joined to the sequence within each attention.
        abs_pos: a learned table of positions, added to the tokens; binds the model to one image size unless
            `dynamic_img_size` is on.
        daff: dynamic aggregation feed-forward (convolutions and norms); else the two linear layers of a ViT. The
            options below count for both, and None is "as in DAFF", on, or "as in a ViT", off.
        daff_norm: norm of the convolutions of DAFF.
        local: what mixes neighbouring cells between the two layers: a depth-wise 3x3 convolution, the mean of 3x3
            cells (zeros outside, as a convolution of equal weights would have them), or nothing.
        shortcut: add what enters the local mixing to its output.
        split_cls: the class token takes no part in the layers. It passes through as it is after the block's norm, so
            that the block adds the normed class token to itself; the paper does not spell this out, its program's
            structure implies it.
        aggregate: the mean output cell, through two linear layers and no gate function, multiplies the class token
            ("cls"), every token ("all") or nothing ("none").

    Raises:
        ValueError: an option has no such value.
    """

    sope: bool = True
    sope_norm: Norm = "batch"
    pre_affine: bool = True
    post_affine: bool = True
    head_tokens: bool = True
    abs_pos: bool = False
    daff: bool = True
    daff_norm: Norm = "batch"
    local: Local | None = None
    shortcut: bool | None = None
    split_cls: bool | None = None
    aggregate: Aggregate | None = None

    def __post_init__(self) -> None:
        self._require("sope_norm", Norm)
        self._require("daff_norm", Norm)
        self._require("local", Local, None)
        self._require("aggregate", Aggregate, None)
        for name in ("sope", "pre_affine", "post_affine", "head_tokens", "abs_pos", "daff"):
            self._require(name, Literal[True, False])
        for name in ("shortcut", "split_cls"):
            self._require(name, Literal[True, False], None)

    def feed_forward(self) -> dict[str, Any]:
        """Return `local`, `shortcut`, `split_cls` and `aggregate` with the None values settled."""
        usual = {"local": "conv", "shortcut": True, "split_cls": True, "aggregate": "cls"}
        if not self.daff:
            usual = {"local": "none", "shortcut": False, "split_cls": False, "aggregate": "none"}
        given = {name: getattr(self, name) for name in usual}
        return {name: usual[name] if value is None else value for name, value in given.items()}

    def _require(self, name: str, allowed: Any, *further: Any) -> None:
        value, values = getattr(self, name), (*get_args(allowed), *further)
        if not any(value is one or (isinstance(one, str) and value == one) for one in values):
            raise ValueError(f"{name} is {value!r}; give one of {', '.join(map(repr, values))}")
