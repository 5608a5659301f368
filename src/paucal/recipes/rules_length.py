"""How long a run is, how many images a step takes, and how the learning rate follows from both."""

import math
from typing import Any

from paucal.recipes.facts import Facts
from paucal.recipes.published import recipe_rate
from paucal.recipes.settings import TrainSettings

Choice = tuple[Any, str]

PAPER_EPOCHS, MAX_EPOCHS, MIN_STEPS = 100, 300, 2500


def epochs(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's 100, and more where a pass has few steps."""
    if facts.hinted_epochs:
        return facts.hinted_epochs, "enough for this data set"
    if settings.init is not None:
        return PAPER_EPOCHS, "the paper's fine-tuning schedule"
    steps = steps_per_epoch(facts, settings)
    wanted = math.ceil(MIN_STEPS / steps)
    if wanted <= PAPER_EPOCHS:
        return PAPER_EPOCHS, "the paper's from-scratch schedule"
    chosen = min(wanted, MAX_EPOCHS)
    return chosen, f"{steps} steps an epoch: about {chosen * steps} steps in all"


def batch_size(facts: Facts, settings: TrainSettings) -> Choice:
    """A tenth of the images for all devices together, at most the paper's 128 for each."""
    share = facts.n_train // (processes(settings) * settings.accumulate)
    size = 2 ** int(math.log2(max(share / 10, 16)))
    size = max(1, min(size, 128, share))
    if size == 128:
        return size, "the paper's images per device"
    return size, f"{facts.n_train} training images: at least 10 steps an epoch where that is possible"


def lr(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's rate, scaled by the square root of the batch, as suits AdamW; a small network takes more."""
    batch = effective_batch(settings)
    published = recipe_rate(settings, batch)
    if published is not None:
        return published
    small = settings.model in ("vit_mini", "dhvt_mini")
    anchor, source = (64, "tried for small models") if small else (1024, "the paper's")
    peak = 1e-3
    if settings.init is not None:
        peak, source = 5e-4, "half of from scratch, as in the paper's fine-tuning"
    chosen = round(peak * math.sqrt(batch / anchor), 8)
    return chosen, f"{peak:g} at batch {anchor} ({source}), times sqrt({batch}/{anchor})"


def min_lr(facts: Facts, settings: TrainSettings) -> Choice:
    """A hundredth of the peak."""
    return (settings.lr or 0.0) / 100, "a hundredth of the peak, as in the paper"


def warmup_epochs(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's 20 of 100 epochs, as a share, but never longer than 20."""
    if settings.init is not None:
        chosen = min(10.0, 0.1 * (settings.epochs or 1))
        return chosen, "a tenth of the epochs and at most 10, as in the paper's fine-tuning"
    chosen = min(20.0, 0.2 * (settings.epochs or 1))
    return chosen, "a fifth of the epochs and at most 20, as in the paper"


def schedule_epochs(facts: Facts, settings: TrainSettings) -> Choice:
    """The epochs that are run."""
    return settings.epochs, "the cosine ends with the run"


def average(facts: Facts, settings: TrainSettings) -> Choice:
    """An average over about the last twentieth of the run."""
    steps = (settings.epochs or 1) * steps_per_epoch(facts, settings)
    decay = round(min(0.9999, 1 - 1 / max(20.0, steps / 20)), 6)
    return decay, f"averages over about {round(1 / (1 - decay))} of {steps} steps"


RULES = (batch_size, epochs, schedule_epochs, lr, min_lr, warmup_epochs, average)


def steps_per_epoch(facts: Facts, settings: TrainSettings) -> int:
    """Return the optimizer steps of one pass; an incomplete last batch is left out."""
    return max(1, facts.n_train // effective_batch(settings))


def processes(settings: TrainSettings) -> int:
    """Return the processes that train together."""
    return (settings.devices or 1) * (settings.nodes or 1)


def effective_batch(settings: TrainSettings) -> int:
    """Return the images of one optimizer step, over all devices and forward passes."""
    return settings.images_per_pass * settings.accumulate * processes(settings)
