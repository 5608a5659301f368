"""Rules that choose the automatic settings of a detector by the images, the machine and the initial weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from paucal.rules.facts import DataAndMachine, describe_undertrained
from paucal.rules.images import normalise_like_start
from paucal.rules.machine import COMPUTE_RULES, PROCESS_RULES
from paucal.rules.model import model_args, model_of_start
from paucal.rules.resolve import Choice, rules_by_name
from paucal.wording import counted

PAPER_REASON = "as published"
CPU_REASON = "on a CPU: a smaller detector learns more in the same time"
CPU_SIDE = 416  # pixels
PAPER_SIDES = (800, 1333)  # limits of the shorter and of the longer side in pixels
MIN_NORM_BATCH = 16  # minimum batch with which batch norms update their pretrained statistics
DEFAULT_STEPS = 3000  # default length on an accelerator, enough for a few hundred images
MIN_EPOCHS, MAX_EPOCHS = 12, 200  # 12 is the papers' "1x" schedule for 118,000 images


@dataclass(frozen=True)
class BoxFacts(DataAndMachine):
    """Facts on images with boxes and on the machine.

    Attributes:
        longer: Median of the images' longer sides in pixels.
        small: Side of a small object, over the longer side of its image: the tenth percentile of the roots of areas.
        boxes: Number of boxes in all splits.
        without_outline: Number of boxes without an outline.
    """

    longer: int = 0
    small: float = 0.1
    boxes: int = 0
    without_outline: int = 0


def model(facts: DataAndMachine) -> Choice:
    """Choose the model of the initial weights, or else a small network on a CPU and the papers' network on a GPU."""
    if start_model := model_of_start(facts):
        return start_model
    if facts.device == "cpu":
        return "resnet18", "from scratch on a CPU: a small network with feature maps of all strides"
    return "swin_tiny_patch4_window7_224", "the backbone of the papers' detectors"


def img_size(facts: BoxFacts, device: str | None) -> Choice:
    """Choose the size of the images on a CPU, up to `CPU_SIDE`; else the papers' sides."""
    if device == "cpu":
        side = min(CPU_SIDE, facts.longer)
        return [
            max(side, 32)
        ], "the size of the images" if side == facts.longer else f"reduced from {facts.longer}: {CPU_REASON}"
    return list(PAPER_SIDES), PAPER_REASON


def masks(facts: BoxFacts) -> Choice:
    """Predict masks if every object has an outline: masks cost little, and also improve the boxes."""
    if not facts.without_outline:
        return "on", "every box has an outline"
    if facts.without_outline == facts.boxes:
        return "off", "no box has an outline"
    return "off", f"{facts.without_outline} of {counted(facts.boxes, 'box', 'boxes')} have no outline"


def finest(device: str | None, img_size: Sequence[int] | None) -> Choice:
    """Choose the papers' stride of 4, but 8 on a CPU, since the finest feature map takes most of the time."""
    return (
        (8, "on a CPU, a feature map of stride 4 would take most of the time") if device == "cpu" else (4, PAPER_REASON)
    )


def anchor(facts: BoxFacts, finest: int, img_size: Sequence[int]) -> Choice:
    """Choose the papers' 8 strides as the side of an anchor, or 4 if small objects are smaller than these anchors."""
    side = facts.small * max(img_size)
    if side < 0.75 * 8 * finest:
        return 4, f"small objects have {side:.0f} pixels in the network's input"
    return 8, PAPER_REASON


def pyramid_channels(device: str | None) -> Choice:
    """Choose the papers' 256 channels, or fewer on a CPU."""
    return (128, CPU_REASON) if device == "cpu" else (256, PAPER_REASON)


def head_dim(device: str | None) -> Choice:
    """Choose the papers' width of 1024, or less on a CPU."""
    return (256, CPU_REASON) if device == "cpu" else (1024, PAPER_REASON)


def regions(device: str | None) -> Choice:
    """Choose the papers' 512 regions, or fewer on a CPU."""
    return (128, CPU_REASON) if device == "cpu" else (512, PAPER_REASON)


def proposals(device: str | None) -> Choice:
    """Choose torchvision's 2000 proposals, or fewer on a CPU."""
    return (500, CPU_REASON) if device == "cpu" else (2000, "torchvision's")


def time(epochs: int | None, steps: int | None, device: str | None) -> Choice:
    """Limit the time to twenty minutes on a CPU if no length is given."""
    if epochs is not None or steps is not None or device != "cpu":
        return None, ""
    return "20m", "twenty minutes; give --time 2h, or --epochs, for more"


def batch_size(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose at most 4 images on a CPU, to fit many steps in the time, and up to the papers' 16 on an accelerator."""
    if device == "cpu":
        return min(4, facts.n_train), "on a CPU: many small steps"
    return max(1, min(16, facts.n_train // 8)), "the papers' 16, or an eighth of the training images"


def epochs(facts: DataAndMachine, time: str | None, steps: int | None, batch_size: int) -> Choice:
    """Choose as many epochs as about 3000 steps make, unless the time or the number of steps is given."""
    if time is not None or steps is not None:
        return None, ""
    count = max(MIN_EPOCHS, min(MAX_EPOCHS, round(DEFAULT_STEPS * batch_size / max(facts.n_train, 1))))
    return count, f"about {DEFAULT_STEPS} steps, and at least {MIN_EPOCHS} epochs"


def lr(init: str | None, batch_size: int) -> Choice:
    """Choose four times the papers' AdamW rate, for short runs; scale it by the root of batches below 16 images."""
    peak = 4e-4 * (min(batch_size, 16) / 16) ** 0.5
    return round(peak, 6), "four times the papers' 1e-4, for short runs; scaled by the root of the batch"


def warmup_epochs(facts: DataAndMachine) -> Choice:
    """Warm up for half an epoch, in which the new layers adapt to the backbone."""
    return 0.5, "half an epoch, in which the new layers adapt to the backbone"


def min_lr() -> Choice:
    """Let the learning rate end at zero."""
    return 0.0, "a half cosine down to zero"


def freeze(init: str | None, facts: DataAndMachine) -> Choice:
    """Freeze the stem and the first stage of pretrained weights, as published."""
    if init is None:
        return "none", "from scratch"
    if facts.start is not None and facts.start.undertrained:
        return "none", describe_undertrained(facts.start)
    return 1, f"{PAPER_REASON}: the first layers of pretrained weights suit all images"


def eval_mode(init: str | None, facts: DataAndMachine, batch_size: int) -> Choice:
    """Keep the pretrained batch-norm statistics if a batch is too small to compute better ones."""
    if facts.start is not None and facts.start.undertrained:
        return False, describe_undertrained(facts.start)
    if init is not None and batch_size < MIN_NORM_BATCH:
        few = counted(batch_size, "image is", "images are")
        return True, f"{few} too few for better statistics than those of the weights"
    return False, "no pretrained statistics" if init is None else "large batches"


def backbone_lr(init: str | None, facts: DataAndMachine) -> Choice:
    """Lower the learning rate of pretrained weights."""
    if init is None:
        return 1.0, "from scratch"
    if facts.start is not None and facts.start.undertrained:
        return 1.0, describe_undertrained(facts.start)
    return 0.5, "half the rate of the new layers for pretrained weights"


def average(time: str | None) -> Choice:
    """Keep a moving average over the last few hundred steps."""
    return 0.998, "averaged weights are more stable with few images"


def hflip() -> Choice:
    """Mirror half of the images."""
    return 0.5, PAPER_REASON


def jitter() -> Choice:
    """Change images only a little, since runs are short."""
    return "light", "few images and short runs: sizes vary by a fifth, colours a little"


def normalise(facts: DataAndMachine) -> Choice:
    """Choose the mean and standard deviation that suit the initial weights; from scratch, those of ImageNet."""
    return normalise_like_start(facts) or ("imagenet", "the usual mean and deviation of photographs")


RULES = rules_by_name(
    [
        *(
            *PROCESS_RULES,
            *COMPUTE_RULES,
            model,
            model_args,
            img_size,
            masks,
            finest,
            anchor,
            pyramid_channels,
            head_dim,
        ),
        *(regions, proposals, time, batch_size, epochs, lr, warmup_epochs, min_lr, freeze, eval_mode, backbone_lr),
        *(average, hflip, jitter, normalise),
    ]
)
