"""Settings that make no sense are refused before any work is done."""

import math
from collections.abc import Mapping, Sequence

from paucal.recipes.rules_images import UNMIXED
from paucal.recipes.settings import TrainSettings, flag, setting_fields
from paucal.types import UserError

# Lowest and highest value allowed, both included; None for no bound.
RANGES: dict[str, tuple[float, float | None]] = {
    "few_labels": (1, None),
    "epochs": (1, None),
    "schedule_epochs": (1, None),
    "batch_size": (1, None),
    "accumulate": (1, None),
    "min_lr": (0, None),
    "warmup_epochs": (0, None),
    "warmup_lr": (0, None),
    "repeats": (1, None),
    "weight_decay": (0, None),
    "clip": (0, None),
    "label_smoothing": (0, 0.999),
    "average": (0, 0.999999),
    "drop_path": (0, 0.95),
    "layer_decay": (0.01, 1),
    "freeze_epochs": (0, None),
    "hflip": (0, 1),
    "erase": (0, 1),
    "mixup": (0, None),
    "cutmix": (0, None),
    "crop_scale": (0.01, 1),
    "token_weight": (0, None),
    "guide_weight": (0, None),
    "drloc_weight": (0, None),
    "drloc_pairs": (1, None),
    "drloc_hidden": (1, None),
    "global_crops": (1, 64),
    "out_dim": (2, 1 << 20),
    "hidden_dim": (1, 1 << 16),
    "bottleneck_dim": (1, 1 << 16),
    "head_layers": (1, 16),
    "freeze_last_layer": (0, None),
    "region_after": (1, None),
    "warmup_teacher_epochs": (0, None),
    "momentum": (0, 1),
    "centre_momentum": (0, 1),
    "weight_decay_end": (0, None),
    "monitor_images": (20, None),
    "workers": (0, 64),
    "devices": (1, 1024),
    "nodes": (1, 4096),
    "seed": (0, 2**62),
}
POSITIVE = (
    *("lr", "fraction", "val_fraction", "test_fraction"),
    *("student_temperature", "teacher_temperature", "warmup_teacher_temperature"),
)
MAX_SIDE = 4096


def check_used(settings: TrainSettings, given: Mapping[str, str]) -> None:
    """Raise a UserError for a setting of a loss that is not part of the run."""
    labeled = settings.method in UNMIXED
    defaults = {name: field.default for name, field in setting_fields().items()}
    # A stored config gives every setting, also those that have no say in its run; what was typed was meant.
    silent = {
        name for name, origin in given.items() if origin == "config" and getattr(settings, name) == defaults[name]
    }
    changed = [name for name in given if name not in silent]
    for name in changed:
        if name in ("token_preset", "token_weight", "no_mix_token") and not labeled:
            raise UserError(
                f"{flag(name)} has no effect with --method {settings.method}: give --method token-labeling."
            )
        if name in ("mixup", "cutmix") and labeled and getattr(settings, name):
            raise UserError(
                f"{flag(name)} does not go with --method {settings.method}, whose labels are those of parts of images: "
                "leave it out."
            )
        if name.startswith("guide") and "locality" not in (settings.add or ()):
            raise UserError(f"{flag(name)} has no effect without --add locality: add it, or leave {flag(name)} out.")
        if name == "attention_init" and settings.attention_init != "model" and settings.init is not None:
            raise UserError(
                "--attention-init says how a run from scratch begins, and --init gives the weights: leave one out."
            )
    if "drloc" in (settings.method, *(settings.add or ())):
        return
    for name in changed:
        if name.startswith("drloc_"):
            raise UserError(
                f"{flag(name)} has no effect with --method {settings.method}: leave it out, or add the loss with "
                "--add drloc."
            )


def check_ranges(settings: object) -> None:
    """Raise a UserError for the first number that is out of its range; settings of any verb."""
    for name, (low, high) in RANGES.items():
        value = getattr(settings, name, None)
        if value is None or value == "auto":
            continue
        if not math.isfinite(value) or value < low or (high is not None and value > high):
            bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            raise UserError(f"{flag(name)} is {value}, expected a number {bounds}.")
    for name in POSITIVE:
        value = getattr(settings, name, None)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{flag(name)} is {value}, expected a number above 0.")
    check_size(getattr(settings, "img_size", None))


def check_size(size: Sequence[int] | None) -> None:
    """Raise a UserError for `--img-size` of a run, a teacher or a judged model that is no size."""
    if size is None:
        return
    if len(size) not in (1, 2) or not all(8 <= side <= MAX_SIDE for side in size):
        words = " ".join(map(str, size))
        raise UserError(
            f"--img-size is {words!r}, expected one side or height and width, each from 8 to {MAX_SIDE} pixels."
        )
