"""Rules that choose the length of a run, the batch size and the learning rate.

Published values ("the paper") are from the DrLoc paper. `time` is the time budget of the run as given to `--time`, such
as "15m"; None if the run has no time budget.
"""

import math
from collections.abc import Sequence

from paucal.data.sampler import steps_per_epoch
from paucal.recipes.recipe import recipe_learning_rate
from paucal.recipes.table import RECIPES
from paucal.rules.facts import DataAndMachine, makes_few_passes
from paucal.rules.model_and_size import QUICK_MODEL, trains_quick_model
from paucal.rules.resolve import Choice
from paucal.wording import counted

PAPER_EPOCHS, MAX_EPOCHS = 100, 300  # published number of epochs; upper limit if an epoch has few steps
MIN_STEPS = 2500  # minimum number of optimizer steps in a run from scratch
MIN_STEPS_PER_EPOCH = 10
HINTED_STEPS_PER_EPOCH = 30  # minimum number of steps per epoch for data sets with a recommended number of epochs
QUICK_STEPS_PER_EPOCH = 50  # approximate number of steps per epoch in short runs
# The same number for fine-tuning without a CUDA GPU, where few epochs fit in the time budget (docs/lab/).
TUNING_STEPS_PER_EPOCH = 100
# The learning rate for fine-tuning if no trial chooses one. Networks with batch norms tolerated 3e-4 and more, networks
# with layer norms only 1e-4 (auto_tune/trials.py).
SHORT_TUNING_RATE = 2e-4
# Number of epochs whose weights are averaged; in Wortsman et al. (2022), the first few epochs give most of the gain.
SOUP_EPOCHS = 3


def time(facts: DataAndMachine, recipe: str | None, epochs: int | None) -> Choice:
    """Choose a time budget of half an hour on a GPU, else of a quarter of an hour.

    There is no time budget if the length of the run follows from --epochs, a recipe, the data set's recommendation, or
    initial weights that the user gave.
    """
    is_start_given = facts.initial_weights is not None and not facts.initial_weights.chosen
    if epochs is not None or recipe is not None or facts.hinted_epochs or is_start_given:
        return None, ""
    if facts.device == "cuda":
        return "30m", "half an hour on a GPU; for longer runs give --time 2h, or --epochs"
    return "15m", "a quarter of an hour; for longer runs give --time 2h, or --epochs"


def epochs(facts: DataAndMachine, time: str | None, init: str | None, effective_batch: int) -> Choice:
    """Choose the published 100 epochs, or up to 300 if an epoch has few steps; None if --time sets the length."""
    if time is not None:
        return None, ""
    if facts.hinted_epochs:
        return facts.hinted_epochs, "enough for this data set"
    if init is not None:
        return PAPER_EPOCHS, "the DrLoc paper's fine-tuning schedule"
    steps = steps_per_epoch(facts.n_train, effective_batch)
    needed_epochs = math.ceil(MIN_STEPS / steps)
    if needed_epochs <= PAPER_EPOCHS:
        return PAPER_EPOCHS, "the DrLoc paper's from-scratch schedule"
    n_epochs = min(needed_epochs, MAX_EPOCHS)
    return n_epochs, f"{counted(steps, 'step')} per epoch: about {n_epochs * steps} steps in total"


def batch_size(
    facts: DataAndMachine,
    model: str | None,
    img_size: Sequence[int],
    time: str | None,
    accumulate: int,
    processes: int,
) -> Choice:
    """Choose a power of two, at most the published 128, that gives at least 10 steps per epoch (more in short runs).

    On the built-in digits, 16 epochs of 39 steps are as accurate as 24 epochs of 19 steps, in two thirds of the time.
    """
    device_images = facts.n_train // (processes * accumulate)
    if makes_few_passes(facts, time) or trains_quick_model(facts, model, img_size, time):
        steps = (
            TUNING_STEPS_PER_EPOCH
            if makes_few_passes(facts, time) and facts.device != "cuda"
            else QUICK_STEPS_PER_EPOCH
        )
        size = max(1, min(2 ** int(math.log2(max(device_images / steps, 16))), 128, device_images))
        return size, f"few epochs: about {steps} steps each, with at least 16 images per step"
    min_steps = HINTED_STEPS_PER_EPOCH if facts.hinted_epochs else MIN_STEPS_PER_EPOCH
    size = max(1, min(2 ** int(math.log2(max(device_images / min_steps, 16))), 128, device_images))
    if size == 128:
        return size, "the DrLoc paper's images per device"
    return size, f"{facts.n_train} training images: at least {min_steps} steps per epoch if possible"


def lr(recipe: str | None, model: str | None, init: str | None, time: str | None, effective_batch: int) -> Choice:
    """Choose the recipe's peak learning rate, else a rate for AdamW scaled by the square root of the batch size.

    The published rate of 1e-3 holds for a batch size of 1024. For small networks, the same rate is used at a smaller
    batch size.
    """
    recipe_choice = recipe_learning_rate(RECIPES, recipe, model, effective_batch)
    if recipe_choice is not None:
        return recipe_choice
    base_batch, source = {
        "vit_mini": (64, "tried for small models"),
        "dhvt_mini": (64, "tried for small models"),
        QUICK_MODEL: (16, "tried for this network"),
    }.get(model or "", (1024, "the DrLoc paper's"))
    peak = 1e-3
    if init is not None and time is not None:
        return SHORT_TUNING_RATE, "for short fine-tuning, a compromise between networks with and without batch norm"
    if init is not None:
        peak, source = 5e-4, "half of the rate from scratch, as in the DrLoc paper's fine-tuning"
    rate = round(peak * math.sqrt(effective_batch / base_batch), 8)
    return rate, f"{peak:g} at batch {base_batch} ({source}), times sqrt({effective_batch}/{base_batch})"


def min_lr(lr: float) -> Choice:
    """Choose a hundredth of the peak learning rate."""
    return lr / 100, "a hundredth of the peak, as in the DrLoc paper"


def warmup_epochs(init: str | None, epochs: int | None) -> Choice:
    """Choose a fifth of the epochs and at most 20, as published; for fine-tuning, a tenth and at most 10."""
    if epochs is None:
        return None, ""
    if init is not None:
        return min(10.0, 0.1 * epochs), "a tenth of the epochs and at most 10, as in the DrLoc paper's fine-tuning"
    return min(20.0, 0.2 * epochs), "a fifth of the epochs and at most 20, as in the DrLoc paper"


def schedule_epochs(epochs: int | None) -> Choice:
    """Choose the number of epochs of the run, so that the cosine schedule ends with the run."""
    return epochs or None, "the cosine ends with the run"


def average(facts: DataAndMachine, epochs: int | None, effective_batch: int) -> Choice:
    """Choose a decay with which the moving average covers about the last twentieth of the steps."""
    if epochs is None:
        return None, ""
    steps = epochs * steps_per_epoch(facts.n_train, effective_batch)
    decay = round(min(0.9999, 1 - 1 / max(20.0, steps / 20)), 6)
    return decay, f"averages over about {round(1 / (1 - decay))} of {steps} steps"


def soup(facts: DataAndMachine, time: str | None) -> Choice:
    """Choose to average the weights of several epochs in short fine-tuning, and to use the best epoch otherwise."""
    if makes_few_passes(facts, time):
        return SOUP_EPOCHS, "in short fine-tuning the weights of different epochs are similar enough to be averaged"
    return 0, "in long training the weights of different epochs differ too much to be averaged"


RULES = (time, batch_size, epochs, schedule_epochs, lr, min_lr, warmup_epochs, average, soup)
