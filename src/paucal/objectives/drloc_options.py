"""Options of dense relative localization, the presets of paper and code, and weights per backbone."""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from paucal.losses.drloc import DrLocReading, Mode, Pool
from paucal.losses.drloc_targets import ClassSet, Scale
from paucal.types import Level, UserError

Schedule = Literal["constant", "ramp"]


@dataclass(frozen=True)
class DrLocOptions(DrLocReading):
    """All options of the term; those of the formula are inherited from `DrLocReading`.

    Attributes:
        weight: Factor lambda of the loss; see `default_weight` for what was published per backbone.
        n_pairs: Random pairs per image m; None pairs all cells with a random permutation of themselves.
        hidden: Width of the two hidden layers of the head.
        extra_layer: Give the head of "ce" and "reg" one more linear layer, as the authors' code does.
        pool: Pooling of the last grid before the pairs, see `paucal.losses.drloc.pool_grid`. Where `levels` asks for
            several grids, "paper" and "reference" pool none of them, as in both sources.
        levels: "last" for the final grid; "stages", "merged" or "blocks" for one loss and one head on each of
            these grids, summed (L_all: the paper means blocks, the authors' code the outputs of Swin's stages
            after merging).
        norm: Read the last grid after the final norm (True) or before it.
        schedule: "constant", or "ramp": linear from 0 to `weight` over `warmup_epochs`, then linear to 0 at
            `horizon_epochs`, as in the authors' code, in which the run may end long before that.
        warmup_epochs: Length of the rise.
        horizon_epochs: Epoch at which the weight reaches 0.
        seed: Seed of the stream of random pairs.
    """

    weight: float = 0.5
    n_pairs: int | None = 64
    hidden: int = 512
    extra_layer: bool = False
    pool: Pool | int = "paper"
    levels: Level = "last"
    norm: bool = True
    schedule: Schedule = "constant"
    warmup_epochs: int = 20
    horizon_epochs: int = 300
    seed: int = 0

    def __post_init__(self):
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (name == "pool" and type(value) is int and value > 0):
                pool_text = " or a number of cells" if name == "pool" else ""
                raise UserError(f"The DrLoc option {name} is {value!r}; choose one of {', '.join(allowed)}{pool_text}.")
        for name, minimum in _MINIMA.items():
            value = getattr(self, name)
            if value is not None and not value >= minimum:
                raise UserError(f"The DrLoc option {name} is {value!r}; give a number of at least {minimum}.")
        if self.schedule == "ramp" and self.horizon_epochs <= self.warmup_epochs:
            raise UserError(
                f"The DrLoc option horizon_epochs is {self.horizon_epochs}; give more epochs than the "
                f"{self.warmup_epochs} of warmup_epochs."
            )


_CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": get_args(Mode),
    "scale": get_args(Scale),
    "coordinates": ("mean", "sum"),
    "classes": get_args(ClassSet),
    "log_of": ("sigma", "variance"),
    "pool": get_args(Pool),
    "levels": get_args(Level),
    "schedule": get_args(Schedule),
}
_MINIMA = {"weight": 0, "alpha": 0, "n_pairs": 1, "hidden": 1, "warmup_epochs": 0, "seed": 0}

# The method as in the paper, which the defaults are, and in the authors' code; docs/reference/drloc_options.md lists
# every difference.
PAPER = DrLocOptions()
PRESETS = {
    "paper": PAPER,
    "reference": DrLocOptions(
        scale="none",
        shifted=True,
        classes="absolute",
        log_of="variance",
        extra_layer=True,
        pool="reference",
        norm=False,
        schedule="ramp",
    ),
}

_WEIGHTS = {
    "swin": (0.5, "the paper's value for Swin-T"),
    "t2t": (0.1, "the paper's value for T2T-ViT-14"),
    "cvt": (0.1, "the paper's value for CvT-13"),
    "vit": (0.01, "the paper's value for ViT-B/16"),
    "other": (0.1, "the paper has none for this backbone; 0.1 improved all three backbones of its Table 2b"),
}
_FAMILIES = {
    "swin": re.compile(r"(^|_)swin"),
    "t2t": re.compile(r"(^|_)t2t_"),
    "cvt": re.compile(r"(^|_)cvt_"),
    "vit": re.compile(r"^(esvit_|drloc_)?(vit(?!_mini)|deit3?|flexivit)_"),
}


def default_weight(model_name: str) -> tuple[float, str]:
    """Return the weight of the loss for a backbone, by its name, and the reason in words.

    Example:
        >>> default_weight("swin_tiny_patch4_window7_224")
        (0.5, "the paper's value for Swin-T")
    """
    return _WEIGHTS[_family(model_name)]


def preset_options(preset: str, *, model_name: str | None = None, **overrides: Any) -> DrLocOptions:
    """Return the options of a preset for a backbone.

    Args:
        preset: "paper" or "reference".
        model_name: Name of the backbone; sets the weight by `default_weight` and, for "reference", follows
            the authors' code: the grid of a plain ViT is not pooled, and that of T2T-ViT is read after its
            final norm.
        **overrides: Fields of `DrLocOptions` that override both.
    """
    if preset not in PRESETS:
        raise UserError(f"DrLoc has no preset {preset!r}; choose one of {', '.join(PRESETS)}.")
    option_names = sorted(field.name for field in fields(DrLocOptions))
    for name in overrides:
        if name not in option_names:
            raise UserError(f"DrLoc has no option {name!r}; choose among {', '.join(option_names)}.")
    options = PRESETS[preset]
    if model_name is not None:
        options = replace(options, weight=default_weight(model_name)[0])
        if preset == "reference":
            exceptions: dict[str, dict[str, Any]] = {"vit": {"pool": "none"}, "t2t": {"norm": True}}
            options = replace(options, **exceptions.get(_family(model_name), {}))
    return replace(options, **overrides)


def _family(model_name: str) -> str:
    return next((family for family, pattern in _FAMILIES.items() if pattern.search(model_name)), "other")
