"""Rules that choose the augmentation of training images; published values are those of the DrLoc paper.

`time` is the time budget of the run as in `--time`, such as "15m"; None without one.
"""

from collections.abc import Sequence

from paucal.rules.facts import DataAndMachine, makes_few_passes
from paucal.rules.model import PAPER_REASON, SMALL_SIDE, is_quick
from paucal.rules.resolve import Choice

Sides = Sequence[int] | None
LIGHT_REASON = "light: the weights were trained on many images"
SEVERAL_LABELS_REASON = "off for images with several labels"
LIGHT_QUICK_REASON = "light: strong augmentation needs more epochs"


def crop(img_size: Sides) -> Choice:
    """Choose padded crops for small images, which lose little at the border; else random resized crops."""
    if _shortest_side(img_size) <= SMALL_SIDE:
        return "padded", "small images are only shifted, by up to an eighth"
    return "random-resized", "the DrLoc paper's crop"


def crop_scale(facts: DataAndMachine, crop: str | None, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """Choose the smallest area of random resized crops: half of the image for light augmentation, else as published."""
    reason = _reason_for_light(facts, model, img_size, time)
    if crop == "random-resized" and reason:
        return 0.5, reason
    return (0.08, PAPER_REASON) if crop == "random-resized" else (None, "")


def hflip(facts: DataAndMachine) -> Choice:
    """Choose to mirror half of the images, or none if mirroring changes their meaning."""
    return (0.5, PAPER_REASON) if facts.flip else (0.0, "mirroring changes the meaning of these images")


def rand_augment(facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """Choose the published policy, or none for light augmentation and for tiny images."""
    reason = _reason_for_none(facts, model, img_size, time)
    return ("none", reason) if reason else ("rand-m9-mstd0.5-inc1", "the DrLoc paper's policy")


def erase(facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """Choose the published probability of random erasing, or 0 for light augmentation and for tiny images."""
    reason = _reason_for_none(facts, model, img_size, time)
    return (0.0, reason) if reason else (0.25, PAPER_REASON)


def mixup(facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """Choose the published alpha of mixup, or 0 for light augmentation, tiny images and several labels per image."""
    return _mixing_choice(0.8, facts, img_size, model, time)


def cutmix(facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """Choose the published alpha of CutMix, or 0 for light augmentation, tiny images and several labels per image."""
    return _mixing_choice(1.0, facts, img_size, model, time)


def _mixing_choice(alpha: float, facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    reason = SEVERAL_LABELS_REASON if facts.several_labels else _reason_for_none(facts, model, img_size, time)
    return (0.0, reason) if reason else (alpha, PAPER_REASON)


def normalise(facts: DataAndMachine) -> Choice:
    """Choose the mean and standard deviation that suit the initial weights; from scratch, those of the images."""
    from_scratch = "computed", "trained from scratch: mean and standard deviation of the training images"
    return normalise_like_start(facts) or from_scratch


def normalise_like_start(facts: DataAndMachine) -> Choice | None:
    """Choose the mean and standard deviation that suit the initial weights; None without initial weights."""
    return None if facts.start is None else (facts.start.normalise, f"as for {facts.start.where}")


RULES = (crop, crop_scale, hflip, rand_augment, erase, mixup, cutmix, normalise)


def _shortest_side(img_size: Sides) -> int:
    return min(img_size or [224])


def _reason_for_light(facts: DataAndMachine, model: str | None, img_size: Sides, time: str | None) -> str:
    """Return why augmentation is light; "" if it has the published strength."""
    if makes_few_passes(facts, time):
        return LIGHT_REASON
    return LIGHT_QUICK_REASON if is_quick(facts, model, img_size, time) else ""


def _reason_for_none(facts: DataAndMachine, model: str | None, img_size: Sides, time: str | None) -> str:
    """Return why an augmentation is off: training is short, or images are tiny; "" if it is on."""
    unreadable = "images under 32 pixels become unreadable" if _shortest_side(img_size) < 32 else ""
    return _reason_for_light(facts, model, img_size, time) or unreadable
