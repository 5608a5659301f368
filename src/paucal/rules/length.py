"""Rules for the length of a run, the batch size, and the learning rate that follows from both."""

import math
from collections.abc import Sequence

from paucal.data.sampler import steps_per_epoch
from paucal.recipes.recipe import recipe_rate
from paucal.recipes.table import RECIPES
from paucal.rules.facts import DataAndMachine, makes_few_passes
from paucal.rules.model import QUICK_MODEL, is_quick
from paucal.rules.resolve import Choice
from paucal.wording import counted

PAPER_EPOCHS, MAX_EPOCHS, MIN_STEPS = 100, 300, 2500
STEPS, HINTED_STEPS = 10, 30  # minimum number of steps per epoch; the second value if the source recommends few epochs
FEW_PASSES_STEPS = 50
TUNING_STEPS = 100  # per epoch of fine-tuning on a CPU, where only few epochs fit in the time (docs/lab/)
# Rates without a trial: networks with batch norms tolerated 3e-4 and more, with layer norms 1e-4 (auto_tune/trials.py).
SHORT_TUNING = 2e-4
SOUP = 3  # epochs to average; Wortsman et al. 2022 gain most from the first few


def time(facts: DataAndMachine, recipe: str | None, epochs: int | None) -> Choice:
    """Half an hour on a GPU, else a quarter of an hour.

    None if the length is decided by epochs, a recipe, the data set, or weights that the user gave.
    """
    has_named_start = facts.start is not None and not facts.start.chosen
    if epochs is not None or recipe is not None or facts.hinted_epochs or has_named_start:
        return None, ""
    if facts.device == "cuda":
        return "30m", "half an hour of a GPU; give --time 2h, or --epochs, for more"
    return "15m", "a quarter of an hour; give --time 2h, or --epochs, for more"


def epochs(facts: DataAndMachine, time: str | None, init: str | None, effective_batch: int) -> Choice:
    """The paper's 100 epochs, and more if an epoch has few steps; None if --time sets the length."""
    if time is not None:
        return None, ""
    if facts.hinted_epochs:
        return facts.hinted_epochs, "enough for this data set"
    if init is not None:
        return PAPER_EPOCHS, "the paper's fine-tuning schedule"
    steps = steps_per_epoch(facts.n_train, effective_batch)
    needed_epochs = math.ceil(MIN_STEPS / steps)
    if needed_epochs <= PAPER_EPOCHS:
        return PAPER_EPOCHS, "the paper's from-scratch schedule"
    n_epochs = min(needed_epochs, MAX_EPOCHS)
    return n_epochs, f"{counted(steps, 'step')} an epoch: about {n_epochs * steps} steps in all"


def batch_size(
    facts: DataAndMachine,
    model: str | None,
    img_size: Sequence[int] | None,
    time: str | None,
    accumulate: int,
    processes: int,
) -> Choice:
    """A tenth of the images over all devices, at most the paper's 128 for each; less for few passes.

    On the built-in digits, 16 passes of 39 steps are as accurate as 24 passes of 19 steps, in two thirds of the time.
    """
    share = facts.n_train // (processes * accumulate)
    if makes_few_passes(facts, time) or is_quick(facts, model, img_size, time):
        steps = TUNING_STEPS if makes_few_passes(facts, time) and facts.device != "cuda" else FEW_PASSES_STEPS
        size = max(1, min(2 ** int(math.log2(max(share / steps, 16))), 128, share))
        return size, f"few passes: about {steps} steps each, with at least 16 images per step"
    min_steps = HINTED_STEPS if facts.hinted_epochs else STEPS
    size = max(1, min(2 ** int(math.log2(max(share / min_steps, 16))), 128, share))
    if size == 128:
        return size, "the paper's images per device"
    return size, f"{facts.n_train} training images: at least {min_steps} steps per epoch if possible"


def lr(recipe: str | None, model: str | None, init: str | None, time: str | None, effective_batch: int) -> Choice:
    """The paper's rate, scaled by the square root of the batch, as suits AdamW; higher for a small network."""
    published = recipe_rate(RECIPES, recipe, model, effective_batch)
    if published is not None:
        return published
    anchor, source = {
        "vit_mini": (64, "tried for small models"),
        "dhvt_mini": (64, "tried for small models"),
        QUICK_MODEL: (16, "tried for this network"),
    }.get(model or "", (1024, "the paper's"))
    peak = 1e-3
    if init is not None and time is not None:
        return SHORT_TUNING, "a compromise for networks with and without batch norm in short tuning"
    if init is not None:
        peak, source = 5e-4, "half of from scratch, as in the paper's fine-tuning"
    rate = round(peak * math.sqrt(effective_batch / anchor), 8)
    return rate, f"{peak:g} at batch {anchor} ({source}), times sqrt({effective_batch}/{anchor})"


def min_lr(lr: float) -> Choice:
    """A hundredth of the peak."""
    return lr / 100, "a hundredth of the peak, as in the paper"


def warmup_epochs(init: str | None, epochs: int | None) -> Choice:
    """The paper's 20 of 100 epochs, as a share, but never longer than 20."""
    if epochs is None:
        return None, ""
    if init is not None:
        return min(10.0, 0.1 * epochs), "a tenth of the epochs and at most 10, as in the paper's fine-tuning"
    return min(20.0, 0.2 * epochs), "a fifth of the epochs and at most 20, as in the paper"


def schedule_epochs(epochs: int | None) -> Choice:
    """The number of epochs of the run."""
    return epochs or None, "the cosine ends with the run"


def average(facts: DataAndMachine, epochs: int | None, effective_batch: int) -> Choice:
    """An average over about the last twentieth of the run."""
    if epochs is None:
        return None, ""
    steps = epochs * steps_per_epoch(facts.n_train, effective_batch)
    decay = round(min(0.9999, 1 - 1 / max(20.0, steps / 20)), 6)
    return decay, f"averages over about {round(1 / (1 - decay))} of {steps} steps"


def soup(facts: DataAndMachine, time: str | None) -> Choice:
    """Average weights of epochs in short fine-tuning, where they are similar; else keep the best epoch."""
    if makes_few_passes(facts, time):
        return SOUP, "epochs of one fine-tuning are similar enough to be averaged"
    return 0, "epochs of a long training differ too much to be averaged"


RULES = (time, batch_size, epochs, schedule_epochs, lr, min_lr, warmup_epochs, average, soup)
