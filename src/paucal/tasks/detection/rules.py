"""Rules that choose the automatic settings of a detector from the images, the machine and the initial weights.

"The papers" are DrLoc and EsViT, whose detectors are trained with Swin's code.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paucal.rules.resolve import Choice, DataAndMachine, Rule, describe_undertrained, rules_by_name
from paucal.rules.training import (
    COMPUTE_RULES,
    PROCESS_RULES,
    model_args,
    model_of_initial_weights,
    normalise_for_initial_weights,
)
from paucal.wording import counted

PAPER_REASON = "as published"
CPU_REASON = "on a CPU: a smaller detector learns more in the same time"
CPU_SIDE = 416  # maximum image side on a CPU, in pixels
PAPER_SIDES = (800, 1333)  # maximum shorter and longer image side in the papers, in pixels
MIN_NORM_BATCH = 16  # minimum batch size at which batch norms update their pretrained statistics
DEFAULT_STEPS = 3000  # default number of steps on an accelerator, enough for a few hundred images
MIN_EPOCHS, MAX_EPOCHS = 12, 200  # the papers' "1x" schedule for 118,000 images has 12 epochs


@dataclass(frozen=True)
class BoxFacts(DataAndMachine):
    """Properties of the images with boxes and of the machine, from which settings are chosen."""

    median_longer_side: int = 0  # median of the images' longer sides in pixels
    small_object_side: float = 0.1  # tenth percentile of sqrt(box area) / longer side of the image
    boxes: int = 0  # number of boxes in all splits, not counting crowds
    without_outline: int = 0  # number of boxes without an outline, not counting crowds


def model(facts: DataAndMachine) -> Choice:
    """Choose the model of the initial weights; for training from scratch, ResNet-18 on a CPU or else Swin-T."""
    if start_model := model_of_initial_weights(facts):
        return start_model
    if facts.device == "cpu":
        return "resnet18", "from scratch on a CPU: a small network with feature maps of all strides"
    return "swin_tiny_patch4_window7_224", "the backbone of the papers' detectors"


def img_size(facts: BoxFacts, device: str | None) -> Choice:
    """On a CPU, default to the median longer side of the images, capped at `CPU_SIDE`; else to the papers' sides."""
    if device != "cpu":
        return list(PAPER_SIDES), PAPER_REASON
    if facts.median_longer_side <= CPU_SIDE:
        return [max(facts.median_longer_side, 32)], "the size of the images"
    return [CPU_SIDE], f"reduced from {facts.median_longer_side}: {CPU_REASON}"


def masks(facts: BoxFacts) -> Choice:
    """Predict masks if every object has an outline, since masks cost little time and also improve the boxes."""
    if not facts.without_outline:
        return "on", "every box has an outline"
    if facts.without_outline == facts.boxes:
        return "off", "no box has an outline"
    return "off", f"{facts.without_outline} of {counted(facts.boxes, 'box', 'boxes')} have no outline"


def finest(device: str | None, img_size: Sequence[int] | None) -> Choice:
    """Choose the papers' stride of 4, but 8 on a CPU, since the finest feature map takes most of the time."""
    if device == "cpu":
        return 8, "on a CPU, a feature map of stride 4 would take most of the time"
    return 4, PAPER_REASON


def anchor(facts: BoxFacts, finest: int, img_size: Sequence[int]) -> Choice:
    """Choose anchor sides of 8 strides, as in the papers, or of 4 strides if small objects are below 6 strides."""
    side = facts.small_object_side * max(img_size)
    if side < 0.75 * 8 * finest:
        return 4, f"small objects have {side:.0f} pixels in the network's input"
    return 8, PAPER_REASON


def _smaller_on_cpu(cpu_value: int, value: int, reason: str = PAPER_REASON) -> Rule:
    """Return a rule that chooses a smaller value on a CPU than on an accelerator."""
    return lambda device: (cpu_value, CPU_REASON) if device == "cpu" else (value, reason)


def time(epochs: int | None, steps: int | None, device: str | None) -> Choice:
    """Limit the time to twenty minutes on a CPU if neither epochs nor steps are given."""
    if epochs is not None or steps is not None or device != "cpu":
        return None, ""
    return "20m", "twenty minutes; give --time 2h, or --epochs, for more"


def batch_size(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose up to 4 images on a CPU, so that many steps fit in the time; otherwise up to 16, as in the papers."""
    if device == "cpu":
        return min(4, facts.n_train), "on a CPU: many small steps"
    return max(1, min(16, facts.n_train // 8)), "the papers' 16, or an eighth of the training images"


def epochs(facts: DataAndMachine, time: str | None, steps: int | None, batch_size: int) -> Choice:
    """Choose as many epochs as take about 3000 steps, unless the time or the number of steps is given."""
    if time is not None or steps is not None:
        return None, ""
    count = max(MIN_EPOCHS, min(MAX_EPOCHS, round(DEFAULT_STEPS * batch_size / max(facts.n_train, 1))))
    return count, f"about {DEFAULT_STEPS} steps, and at least {MIN_EPOCHS} epochs"


def lr(init: str | None, batch_size: int) -> Choice:
    """Choose four times the papers' AdamW learning rate, multiplied by sqrt(batch size / 16) for smaller batches."""
    peak = 4e-4 * (min(batch_size, 16) / 16) ** 0.5
    return round(peak, 6), "four times the papers' 1e-4, for short runs; scaled by the root of the batch"


def _why_not_preserved(init: str | None, facts: DataAndMachine) -> str:
    """Return why the backbone's initial weights are not worth preserving; "" if they are worth preserving."""
    if init is None:
        return "from scratch"
    weights = facts.initial_weights
    return describe_undertrained(weights) if weights is not None and weights.undertrained else ""


def freeze(init: str | None, facts: DataAndMachine) -> Choice:
    """Freeze the stem and the first stage of pretrained weights, as published."""
    if reason := _why_not_preserved(init, facts):
        return "none", reason
    return 1, f"{PAPER_REASON}: the first layers of pretrained weights suit all images"


def eval_mode(init: str | None, facts: DataAndMachine, batch_size: int) -> Choice:
    """Keep the pretrained batch-norm statistics if a batch is too small to compute better statistics."""
    if facts.initial_weights is not None and facts.initial_weights.undertrained:
        return False, describe_undertrained(facts.initial_weights)
    if init is not None and batch_size < MIN_NORM_BATCH:
        subject = counted(batch_size, "image is", "images are")
        return True, f"{subject} too few for better statistics than those of the weights"
    return False, "no pretrained statistics" if init is None else "large batches"


def backbone_lr(init: str | None, facts: DataAndMachine) -> Choice:
    """Lower the learning rate of pretrained weights."""
    if reason := _why_not_preserved(init, facts):
        return 1.0, reason
    return 0.5, "half the rate of the new layers for pretrained weights"


def normalise(facts: DataAndMachine) -> Choice:
    """Choose the mean and standard deviation of the initial weights, or of ImageNet for training from scratch."""
    return normalise_for_initial_weights(facts) or ("imagenet", "the usual mean and deviation of photographs")


RULES: dict[str, Rule] = {
    **rules_by_name([*PROCESS_RULES, *COMPUTE_RULES, model, model_args, img_size, masks, finest, anchor]),
    "pyramid_channels": _smaller_on_cpu(128, 256),
    "head_dim": _smaller_on_cpu(256, 1024),
    "regions": _smaller_on_cpu(128, 512),
    "proposals": _smaller_on_cpu(500, 2000, "torchvision's"),
    **rules_by_name([time, batch_size, epochs, lr]),
    "warmup_epochs": lambda: (0.5, "half an epoch, in which the new layers adapt to the backbone"),
    "min_lr": lambda: (0.0, "a half cosine down to zero"),
    **rules_by_name([freeze, eval_mode, backbone_lr]),
    "average": lambda: (0.998, "averaged weights are more stable with few images"),
    "hflip": lambda: (0.5, PAPER_REASON),
    "jitter": lambda: ("light", "few images and short runs: sizes vary by a fifth, colours a little"),
    **rules_by_name([normalise]),
}
