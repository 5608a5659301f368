"""The ablations of DHVT's supplement as arguments of the registered models, with the published scores.

CIFAR-100, 32 pixels, patches of 4, trained from scratch; top-1 accuracy in percent by batch size. The program reports
the best epoch on the test set. The same model has 80.85 in Table 3, 80.90 in section 2.2.2 and 80.98 in Tables 4
and 5: runs, not settings.

    Table 2    operations on the feed-forward of a ViT: `split_cls`, `aggregate="cls"`, `local="pool"`
    2.2.2      the affines of SOPE: `pre_affine`, `post_affine`
    Table 3    operations within DAFF: `aggregate="all"`, `shortcut`
    Table 4    `num_heads`
    Table 5    (norm of SOPE)-(norm of DAFF): `sope_norm`, `daff_norm`
    Figure 1   learning curves of `head_tokens` alone, and of `sope` and `daff` with and without `abs_pos`
    Figure 2   learning curves of the full model and of one without `head_tokens`
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TINY, SMALL = "dhvt_tiny_cifar_patch4", "dhvt_small_cifar_patch4"
# DHVT with every part of its own off: the plain ViT, on the same code path as the ablations of it.
PLAIN: Mapping[str, Any] = {"sope": False, "daff": False, "head_tokens": False, "abs_pos": True}


@dataclass(frozen=True)
class Ablation:
    """One row.

    Attributes:
        source: table, figure or section of the supplement.
        name: of the row, as published.
        model: registered name.
        arguments: of its constructor.
        accuracy: published top-1 in percent on CIFAR-100, by batch size; empty for curves.
    """

    source: str
    name: str
    model: str
    arguments: Mapping[str, Any]
    accuracy: Mapping[int, float] = field(default_factory=dict)


def _row(source: str, name: str, accuracy: float | None, model: str = TINY, **arguments: Any) -> Ablation:
    return Ablation(source, name, model, arguments, {} if accuracy is None else {512: accuracy})


def _norms(name: str, sope: str, daff: str, small: float, middle: float, large: float) -> Ablation:
    arguments = {"sope_norm": sope, "daff_norm": daff}
    return Ablation("Table 5", name, TINY, arguments, {128: small, 256: middle, 512: large})


def _parts(name: str, **arguments: Any) -> Ablation:
    return _row("Figure 1", name, None, **{**PLAIN, **arguments})


ABLATIONS = (
    _row("Table 2", "ViT", 67.59, **PLAIN),
    _row("Table 2", "ViT + split CLS", 68.76, **PLAIN, split_cls=True),
    _row("Table 2", "ViT + split CLS + agg on CLS", 69.34, **PLAIN, split_cls=True, aggregate="cls"),
    _row("Table 2", "ViT + split CLS + AvgPool", 70.48, **PLAIN, split_cls=True, local="pool"),
    _row("2.2.2", "DHVT", 80.90),
    _row("2.2.2", "DHVT w/o affine", 80.72, pre_affine=False, post_affine=False),
    _row("2.2.2", "ViT + SOPE", 73.68, **{**PLAIN, "sope": True}),
    _row("2.2.2", "ViT + SOPE w/o affine", 73.42, **{**PLAIN, "sope": True}, pre_affine=False, post_affine=False),
    _row("Table 3", "DHVT", 80.85),
    _row("Table 3", "DHVT (agg on all tokens)", 78.34, aggregate="all"),
    _row("Table 3", "DHVT (w/o shortcut)", 80.14, shortcut=False),
    _row("Table 4", "ViT-T, 3 heads", 66.50, **PLAIN, num_heads=3),
    _row("Table 4", "ViT-T, 4 heads", 67.59, **PLAIN, num_heads=4),
    _row("Table 4", "DHVT-T, 3 heads", 80.92, num_heads=3),
    _row("Table 4", "DHVT-T, 4 heads", 80.98, num_heads=4),
    _row("Table 4", "DHVT-S, 4 heads", 82.27, SMALL, num_heads=4),
    _row("Table 4", "DHVT-S, 6 heads", 82.59, SMALL, num_heads=6),
    _row("Table 4", "DHVT-S, 8 heads", 82.82, SMALL, num_heads=8),
    _norms("BN-BN", "batch", "batch", 79.69, 80.31, 80.98),
    _norms("BN-LN", "batch", "layer", 78.69, 79.55, 79.25),
    _norms("LN-BN", "layer", "batch", 79.24, 80.02, 80.26),
    _norms("LN-LN", "layer", "layer", 78.46, 79.09, 78.90),
    _parts("ViT-T"),
    _parts("ViT-T + head tokens", head_tokens=True),
    _parts("SOPE, with positions", sope=True),
    _parts("SOPE, without positions", sope=True, abs_pos=False),
    _parts("DAFF, with positions", daff=True),
    _parts("DAFF, without positions", daff=True, abs_pos=False),
    _parts("SOPE and DAFF, with positions", sope=True, daff=True),
    _parts("SOPE and DAFF, without positions", sope=True, daff=True, abs_pos=False),
    _row("Figure 2", "DHVT", None),
    _row("Figure 2", "DHVT w/o head tokens", None, head_tokens=False),
)
