"""What a detector is chosen by: few images, the machine, and the weights it starts from."""

from collections.abc import Sequence
from dataclasses import dataclass

from paucal.rules.facts import DataAndMachine, describe_undertrained
from paucal.rules.machine import ARITHMETIC, PROCESSES
from paucal.rules.resolve import Choice, rules_by_name
from paucal.wording import counted

PAPER = "as published"
QUICK = "on a processor: a smaller detector learns more in the same time"
CPU_SIDE = 416
PAPER_SIDES = (800, 1333)
STILL_BATCH = 16  # images from which batch norms have statistics of their own
STEPS = 3000  # on an accelerator, where nobody gives a length: what a few hundred images take to be learnt
LEAST_EPOCHS, MOST_EPOCHS = 12, 200  # the papers' "1x" on 118,000 images


@dataclass(frozen=True)
class BoxFacts(DataAndMachine):
    """What is known of images with boxes.

    Attributes:
        longer: median of the longer sides in pixels.
        small: side of a small object (the tenth percentile of the root of the area) over the longer side of its image.
        boxes: number of boxes in all parts.
        bare: how many of them have no outline.
    """

    longer: int = 0
    small: float = 0.1
    boxes: int = 0
    bare: int = 0


def model(facts: DataAndMachine) -> Choice:
    """The start's, or a small network with a map of every stride."""
    if facts.start is not None and facts.start.model is not None:
        return facts.start.model, f"the model of {facts.start.where}"
    if facts.device == "cpu":
        return "resnet18", "from scratch on a processor: small, with a map of every stride"
    return "swin_tiny_patch4_window7_224", "the backbone of the papers' detectors"


def model_args(facts: DataAndMachine, model: str | None) -> Choice:
    """Those of the start, so that its weights fit."""
    start = facts.start
    if start is None or not start.model_args or model != start.model:
        return None, ""
    return list(start.model_args), f"those of {start.where}"


def img_size(facts: BoxFacts, device: str | None) -> Choice:
    """The images' own, up to what the machine can do."""
    if device == "cpu":
        side = min(CPU_SIDE, facts.longer)
        return [max(side, 32)], "the images' own" if side == facts.longer else f"reduced from {facts.longer}: {QUICK}"
    return list(PAPER_SIDES), PAPER


def masks(facts: BoxFacts) -> Choice:
    """Where every object has an outline: masks cost little beside the boxes, and boxes learn from them too."""
    if not facts.bare:
        return "on", "every box has an outline"
    if facts.bare == facts.boxes:
        return "off", "no box has an outline"
    return "off", f"{facts.bare} of {counted(facts.boxes, 'box', 'boxes')} have no outline"


def finest(device: str | None, img_size: Sequence[int] | None) -> Choice:
    """The papers' 4; 8 on a processor, where the finest map takes most of the time."""
    return (8, "on a processor: a map of stride 4 takes most of the time") if device == "cpu" else (4, PAPER)


def anchor(facts: BoxFacts, finest: int, img_size: Sequence[int]) -> Choice:
    """The papers' 8 strides; half where small objects are smaller than the anchors they would get."""
    side = facts.small * max(img_size)
    if side < 0.75 * 8 * finest:
        return 4, f"small objects have {side:.0f} pixels as the network sees them"
    return 8, PAPER


def pyramid_channels(device: str | None) -> Choice:
    """The papers' 256."""
    return (128, QUICK) if device == "cpu" else (256, PAPER)


def head_dim(device: str | None) -> Choice:
    """The papers' 1024."""
    return (256, QUICK) if device == "cpu" else (1024, PAPER)


def regions(device: str | None) -> Choice:
    """The papers' 512."""
    return (128, QUICK) if device == "cpu" else (512, PAPER)


def proposals(device: str | None) -> Choice:
    """Torchvision's 2000."""
    return (500, QUICK) if device == "cpu" else (2000, "torchvision's")


def time(epochs: int | None, steps: int | None, device: str | None) -> Choice:
    """A wait that people take, where nobody says how long a run is."""
    if epochs is not None or steps is not None or device != "cpu":
        return None, ""
    return "20m", "twenty minutes; give --time 2h, or --epochs, for more"


def batch_size(facts: DataAndMachine, device: str | None) -> Choice:
    """Few images, for many steps in the time; the papers' 16 on an accelerator, where the images allow it."""
    if device == "cpu":
        return min(4, facts.n_train), "on a processor: many steps in the time"
    return max(1, min(16, facts.n_train // 8)), "the papers' 16, fewer where the images are few"


def epochs(facts: DataAndMachine, time: str | None, steps: int | None, batch_size: int) -> Choice:
    """As many as make 3000 steps; left open where the time decides."""
    if time is not None or steps is not None:
        return None, ""
    passes = max(LEAST_EPOCHS, min(MOST_EPOCHS, round(STEPS * batch_size / max(facts.n_train, 1))))
    return passes, f"about {STEPS} steps, as few images allow; from {LEAST_EPOCHS} passes up"


def lr(init: str | None, batch_size: int) -> Choice:
    """The papers' rate of AdamW for 16 images, raised for short runs, which small batches lower by the root."""
    peak = 4e-4 * (min(batch_size, 16) / 16) ** 0.5
    return round(peak, 6), "four times the papers' 1e-4, by the root of the batch: short runs of few images"


def warmup_epochs(facts: DataAndMachine) -> Choice:
    """Steps that let the new layers settle."""
    return 0.5, "half a pass: the new layers settle before the backbone moves"


def min_lr() -> Choice:
    """Down to nothing."""
    return 0.0, "a half cosine down to nothing"


def freeze(init: str | None, facts: DataAndMachine) -> Choice:
    """The stem and the first stage of trained weights, as published."""
    if init is None:
        return "none", "from scratch"
    if facts.start is not None and facts.start.undertrained:
        return "none", describe_undertrained(facts.start)
    return 1, f"{PAPER}: the first layers of trained weights suit all images"


def eval_mode(init: str | None, facts: DataAndMachine, batch_size: int) -> Choice:
    """Keep the statistics of the weights where a batch is too small to give better ones."""
    if facts.start is not None and facts.start.undertrained:
        return False, describe_undertrained(facts.start)
    if init is not None and batch_size < STILL_BATCH:
        return True, f"{batch_size} images give worse statistics than those of the weights"
    return False, "no statistics to keep" if init is None else "large batches"


def backbone_lr(init: str | None, facts: DataAndMachine) -> Choice:
    """Slower where it knows much already."""
    if init is None:
        return 1.0, "from scratch"
    if facts.start is not None and facts.start.undertrained:
        return 1.0, describe_undertrained(facts.start)
    return 0.5, "trained weights move at half the rate of the new layers"


def average(time: str | None) -> Choice:
    """A moving average of the last few hundred steps."""
    return 0.998, "averaged weights are steadier where images are few"


def hflip() -> Choice:
    """Half of the images."""
    return 0.5, PAPER


def jitter() -> Choice:
    """Little in short runs."""
    return "light", "few images and short runs: sizes vary by a fifth, colours a little"


def normalise(facts: DataAndMachine) -> Choice:
    """As the weights are used to."""
    if facts.start is not None:
        return facts.start.normalise, f"as for {facts.start.where}"
    return "imagenet", "the usual mean and deviation of photographs"


RULES = rules_by_name(
    [
        *(*PROCESSES, *ARITHMETIC, model, model_args, img_size, masks, finest, anchor, pyramid_channels, head_dim),
        *(regions, proposals, time, batch_size, epochs, lr, warmup_epochs, min_lr, freeze, eval_mode, backbone_lr),
        *(average, hflip, jitter, normalise),
    ]
)
