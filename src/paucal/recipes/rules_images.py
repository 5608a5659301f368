"""How training images are changed, by their size."""

from typing import Any

from paucal.recipes.facts import Facts
from paucal.recipes.rules_model import PAPER, SMALL
from paucal.recipes.settings import TrainSettings

Choice = tuple[Any, str]

UNMIXED = ("token-labeling", "relabel")  # methods whose targets mixup and cutmix do not know how to mix


def crop(facts: Facts, settings: TrainSettings) -> Choice:
    """Padded crops keep small images whole."""
    if _side(settings) <= SMALL:
        return "padded", "small images stay whole: shifted by up to an eighth"
    return "random-resized", "the paper's crop"


def crop_scale(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's smallest crop, where crops have a scale."""
    return (0.08, PAPER) if settings.crop == "random-resized" else (None, "")


def hflip(facts: Facts, settings: TrainSettings) -> Choice:
    """Half of the images, unless a mirrored one means something else."""
    return (0.5, PAPER) if facts.flip else (0.0, "a mirrored image of this data set means something else")


def rand_augment(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's policy; nothing for tiny images, which it makes unreadable."""
    if _side(settings) < 32:
        return "none", "images under 32 pixels become unreadable"
    return "rand-m9-mstd0.5-inc1", "the paper's policy"


def erase(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's probability."""
    return (0.0, "images under 32 pixels become unreadable") if _side(settings) < 32 else (0.25, PAPER)


def mixup(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's alpha; off for tiny images."""
    return _mixed(settings, 0.8)


def cutmix(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's alpha; off for tiny images."""
    return _mixed(settings, 1.0)


def _mixed(settings: TrainSettings, alpha: float) -> Choice:
    if settings.method in UNMIXED:
        return 0.0, f"{settings.method} has labels for parts of images instead"
    return (0.0, "images under 32 pixels become unreadable") if _side(settings) < 32 else (alpha, PAPER)


def normalise(facts: Facts, settings: TrainSettings) -> Choice:
    """Trained from scratch, the data's own statistics are the natural ones."""
    if facts.start is not None:
        return facts.start.normalise, f"as for {facts.start.where}"
    return "computed", "trained from scratch: mean and deviation of the training images"


RULES = (crop, crop_scale, hflip, rand_augment, erase, mixup, cutmix, normalise)


def _side(settings: TrainSettings) -> int:
    return min(settings.img_size or [224])
