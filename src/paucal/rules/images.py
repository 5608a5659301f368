"""Rules for the augmentation of training images, by their size."""

from collections.abc import Sequence

from paucal.rules.facts import DataAndMachine, makes_few_passes
from paucal.rules.model import PAPER, SMALL, is_quick
from paucal.rules.resolve import Choice

Sides = Sequence[int] | None
LIGHT = "light: the weights have seen many images already"
SEVERAL = "off for images with several labels"
LIGHT_QUICK = "light: strong augmentation needs more passes"


def crop(img_size: Sides) -> Choice:
    """Padded crops keep small images whole."""
    if _shortest_side(img_size) <= SMALL:
        return "padded", "small images stay whole: shifted by up to an eighth"
    return "random-resized", "the paper's crop"


def crop_scale(facts: DataAndMachine, crop: str | None, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """The paper's smallest crop, if crops have a scale."""
    reason = _reason_for_light(facts, model, img_size, time)
    if crop == "random-resized" and reason:
        return 0.5, reason
    return (0.08, PAPER) if crop == "random-resized" else (None, "")


def hflip(facts: DataAndMachine) -> Choice:
    """Half of the images, unless mirroring changes the meaning of an image."""
    return (0.5, PAPER) if facts.flip else (0.0, "mirroring changes the meaning of these images")


def rand_augment(facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """The paper's policy; none for tiny images, which it makes unreadable."""
    reason = _reason_for_none(facts, model, img_size, time)
    return ("none", reason) if reason else ("rand-m9-mstd0.5-inc1", "the paper's policy")


def erase(facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """The paper's probability of random erasing; none for tiny images."""
    reason = _reason_for_none(facts, model, img_size, time)
    return (0.0, reason) if reason else (0.25, PAPER)


def mixup(facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """The paper's alpha; off for tiny images and for several labels."""
    return _mixing_choice(0.8, facts, img_size, model, time)


def cutmix(facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    """The paper's alpha; off for tiny images and for several labels."""
    return _mixing_choice(1.0, facts, img_size, model, time)


def _mixing_choice(alpha: float, facts: DataAndMachine, img_size: Sides, model: str | None, time: str | None) -> Choice:
    reason = SEVERAL if facts.several_labels else _reason_for_none(facts, model, img_size, time)
    return (0.0, reason) if reason else (alpha, PAPER)


def normalise(facts: DataAndMachine) -> Choice:
    """The statistics of the initial weights; from scratch those of the data."""
    from_scratch = "computed", "trained from scratch: mean and deviation of the training images"
    return normalise_like_start(facts) or from_scratch


def normalise_like_start(facts: DataAndMachine) -> Choice | None:
    """The statistics of the initial weights; None without weights."""
    return None if facts.start is None else (facts.start.normalise, f"as for {facts.start.where}")


RULES = (crop, crop_scale, hflip, rand_augment, erase, mixup, cutmix, normalise)


def _shortest_side(img_size: Sides) -> int:
    return min(img_size or [224])


def _reason_for_light(facts: DataAndMachine, model: str | None, img_size: Sides, time: str | None) -> str:
    """Return why augmentation is light; "" if it is not."""
    if makes_few_passes(facts, time):
        return LIGHT
    return LIGHT_QUICK if is_quick(facts, model, img_size, time) else ""


def _reason_for_none(facts: DataAndMachine, model: str | None, img_size: Sides, time: str | None) -> str:
    """Return why an augmentation is off: training is short, or images are tiny; "" if it is on."""
    unreadable = "images under 32 pixels become unreadable" if _shortest_side(img_size) < 32 else ""
    return _reason_for_light(facts, model, img_size, time) or unreadable
