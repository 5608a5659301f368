"""Options of dense relative localization, presets of the paper and the authors' code, and loss weights per backbone."""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from paucal.losses.drloc import DrLocReading, Mode, Pool
from paucal.losses.drloc_targets import ClassSet, Scale
from paucal.types import Level, UserError

Schedule = Literal["constant", "ramp"]


@dataclass(frozen=True)
class DrLocOptions(DrLocReading):
    """All options of DrLoc; the options of the loss formula are inherited from `DrLocReading`.

    Attributes:
        weight: Weight lambda of the loss; see `default_weight` for the published weights by backbone.
        n_pairs: Number m of random pairs per image; None to pair each cell with a cell of a random permutation.
        hidden: Width of the head's two hidden layers.
        extra_layer: Whether the head has another linear layer in the modes "ce" and "reg", as in the authors' code.
        pool: Pooling of the last feature map before pairs are drawn, see `paucal.losses.drloc.pool_grid`. If `levels`
            selects several maps, "paper" and "reference" pool none of them, as in the paper and the authors' code.
        levels: Feature maps on which the loss is computed, see `FeatureRequest`: "last" for the final map; "stages",
            "merged" or "blocks" for the sum of the losses on several maps, each with its own head. (The paper computes
            L_all on blocks, and the authors' code on the outputs of Swin's stages after patch merging.)
        norm: Whether the backbone's final norm is applied to the last feature map.
        schedule: "constant" or "ramp". The ramp rises linearly from 0 to `weight` over `warmup_epochs` and then falls
            linearly to 0 at `horizon_epochs`, as in the authors' code. The run may end long before `horizon_epochs`.
        warmup_epochs: Number of epochs in which the ramp rises.
        horizon_epochs: Epoch at which the ramp has fallen to 0.
        seed: Seed of the random pairs.
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
                choices = ", ".join(allowed)
                raise UserError(f"The DrLoc option {name} is {value!r}, but must be one of {choices}{pool_text}.")
        for name, minimum in _MIN_VALUES.items():
            value = getattr(self, name)
            if value is not None and not value >= minimum:
                raise UserError(f"The DrLoc option {name} is {value!r}, but must be at least {minimum}.")
        if self.schedule == "ramp" and self.horizon_epochs <= self.warmup_epochs:
            raise UserError(
                f"The DrLoc option horizon_epochs is {self.horizon_epochs}, but must be larger than warmup_epochs, "
                f"which is {self.warmup_epochs}."
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
_MIN_VALUES = {"weight": 0, "alpha": 0, "n_pairs": 1, "hidden": 1, "warmup_epochs": 0, "seed": 0}

# The options of the paper, which are the defaults, and the options of the authors' code.
# docs/reference/drloc_options.md lists every difference.
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

# Default weight of the loss and its source, by the family of the backbone.
_WEIGHTS_AND_SOURCES = {
    "swin": (0.5, "the paper's value for Swin-T"),
    "t2t": (0.1, "the paper's value for T2T-ViT-14"),
    "cvt": (0.1, "the paper's value for CvT-13"),
    "vit": (0.01, "the paper's value for ViT-B/16"),
    "other": (0.1, "the paper has none for this backbone; 0.1 improved all three backbones of its Table 2b"),
}
_FAMILY_PATTERNS = {
    "swin": re.compile(r"(^|_)swin"),
    "t2t": re.compile(r"(^|_)t2t_"),
    "cvt": re.compile(r"(^|_)cvt_"),
    "vit": re.compile(r"^(esvit_|drloc_)?(vit(?!_mini)|deit3?|flexivit)_"),
}


def default_weight(model_name: str) -> tuple[float, str]:
    """Return the default weight of the loss for the backbone with this name, and the source of the weight as text.

    Example:
        >>> default_weight("swin_tiny_patch4_window7_224")
        (0.5, "the paper's value for Swin-T")
    """
    return _WEIGHTS_AND_SOURCES[_find_family(model_name)]


def preset_options(preset: str, *, model_name: str | None = None, **overrides: Any) -> DrLocOptions:
    """Return the options of a preset for a backbone.

    Args:
        preset: "paper" or "reference".
        model_name: Name of the backbone, which determines the weight (`default_weight`). For the preset "reference",
            the name also determines two options as in the authors' code: the feature map of a plain ViT is not pooled,
            and the feature map of T2T-ViT is taken after the final norm.
        **overrides: Fields of `DrLocOptions` that override the preset.
    """
    if preset not in PRESETS:
        raise UserError(f"DrLoc has no preset {preset!r}; the presets are {', '.join(PRESETS)}.")
    option_names = sorted(field.name for field in fields(DrLocOptions))
    for name in overrides:
        if name not in option_names:
            raise UserError(f"DrLoc has no option {name!r}; the options are {', '.join(option_names)}.")
    options = PRESETS[preset]
    if model_name is not None:
        options = replace(options, weight=default_weight(model_name)[0])
        if preset == "reference":
            exceptions: dict[str, dict[str, Any]] = {"vit": {"pool": "none"}, "t2t": {"norm": True}}
            options = replace(options, **exceptions.get(_find_family(model_name), {}))
    return replace(options, **overrides)


def _find_family(model_name: str) -> str:
    return next((family for family, pattern in _FAMILY_PATTERNS.items() if pattern.search(model_name)), "other")
