"""Rules that choose the augmentation of training images; published values are from the DrLoc paper.

`time` is the time budget of the run as given to `--time`, such as "15m"; None if the run has no time budget.
"""

from collections.abc import Sequence

from paucal.rules.facts import DataAndMachine, makes_few_passes
from paucal.rules.model_and_size import PAPER_REASON, SMALL_SIDE, trains_quick_model
from paucal.rules.resolve import Choice

LIGHT_REASON = "light: the weights were trained on many images"
SEVERAL_LABELS_REASON = "off for images with several labels"
LIGHT_QUICK_REASON = "light: strong augmentation needs more epochs"


def crop(img_size: Sequence[int]) -> Choice:
    """Choose padded crops for small images, since these crops cut off little; else random resized crops."""
    if min(img_size) <= SMALL_SIDE:
        return "padded", "small images are only shifted, by up to an eighth"
    return "random-resized", "the DrLoc paper's crop"


def crop_scale(
    facts: DataAndMachine, crop: str | None, img_size: Sequence[int], model: str | None, time: str | None
) -> Choice:
    """Choose the smallest area of random resized crops: half the image for light augmentation, else the paper's 8 %."""
    reason = _light_reason(facts, model, img_size, time)
    if crop == "random-resized" and reason:
        return 0.5, reason
    return (0.08, PAPER_REASON) if crop == "random-resized" else (None, "")


def hflip(facts: DataAndMachine) -> Choice:
    """Choose to mirror half of the images, or no images if mirroring changes their meaning."""
    return (0.5, PAPER_REASON) if facts.flip else (0.0, "mirroring changes the meaning of these images")


def rand_augment(facts: DataAndMachine, img_size: Sequence[int], model: str | None, time: str | None) -> Choice:
    """Choose the published RandAugment policy, or no policy for light augmentation and for tiny images."""
    reason = _off_reason(facts, model, img_size, time)
    return ("none", reason) if reason else ("rand-m9-mstd0.5-inc1", "the DrLoc paper's policy")


def erase(facts: DataAndMachine, img_size: Sequence[int], model: str | None, time: str | None) -> Choice:
    """Choose the published probability of random erasing, or 0 for light augmentation and for tiny images."""
    reason = _off_reason(facts, model, img_size, time)
    return (0.0, reason) if reason else (0.25, PAPER_REASON)


def mixup(facts: DataAndMachine, img_size: Sequence[int], model: str | None, time: str | None) -> Choice:
    """Choose the published alpha of mixup, or 0 for light augmentation, tiny images and several labels per image."""
    return _choose_mixing(0.8, facts, img_size, model, time)


def cutmix(facts: DataAndMachine, img_size: Sequence[int], model: str | None, time: str | None) -> Choice:
    """Choose the published alpha of CutMix, or 0 for light augmentation, tiny images and several labels per image."""
    return _choose_mixing(1.0, facts, img_size, model, time)


def _choose_mixing(
    alpha: float, facts: DataAndMachine, img_size: Sequence[int], model: str | None, time: str | None
) -> Choice:
    reason = SEVERAL_LABELS_REASON if facts.several_labels else _off_reason(facts, model, img_size, time)
    return (0.0, reason) if reason else (alpha, PAPER_REASON)


def normalise(facts: DataAndMachine) -> Choice:
    """Choose the mean and standard deviation for the initial weights; from scratch, the statistics of the images."""
    from_scratch = "computed", "trained from scratch: mean and standard deviation of the training images"
    return normalise_for_initial_weights(facts) or from_scratch


def normalise_for_initial_weights(facts: DataAndMachine) -> Choice | None:
    """Choose the mean and standard deviation that suit the initial weights; None if there are no initial weights."""
    weights = facts.initial_weights
    return None if weights is None else (weights.normalise, f"as for {weights.where}")


RULES = (crop, crop_scale, hflip, rand_augment, erase, mixup, cutmix, normalise)


def _light_reason(facts: DataAndMachine, model: str | None, img_size: Sequence[int], time: str | None) -> str:
    """Return the reason for light augmentation; "" if augmentation has the published strength."""
    if makes_few_passes(facts, time):
        return LIGHT_REASON
    return LIGHT_QUICK_REASON if trains_quick_model(facts, model, img_size, time) else ""


def _off_reason(facts: DataAndMachine, model: str | None, img_size: Sequence[int], time: str | None) -> str:
    """Return the reason for switching an augmentation off (short training or tiny images); "" to use it."""
    unreadable = "images under 32 pixels become unreadable" if min(img_size) < 32 else ""
    return _light_reason(facts, model, img_size, time) or unreadable
