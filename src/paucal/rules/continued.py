"""Rules for pre-training that starts from weights trained on many images.

A high learning rate or many epochs on few images would destroy the features that these weights compute. For random
weights, and for weights that were trained on few images, the usual rules apply.
"""

import math

from paucal.rules import crops
from paucal.rules.facts import DataAndMachine
from paucal.rules.resolve import Choice, Shape

PUBLISHED_RATE, PUBLISHED_BATCH = 1e-4, 32  # DIET-CP's highest learning rate (arXiv:2509.06990) and its batch size
GPU_VIEWS, CPU_VIEWS = 100_000, 15_000  # images seen in a run (epochs times training images), on a GPU and on a CPU
MIN_EPOCHS, MAX_EPOCHS = 3, 30  # limits of the number of epochs
FROZEN_STAGES_FRACTION = 0.5  # fraction of the stages, beginning with the first, that is frozen


def has_trained_weights(facts: DataAndMachine) -> bool:
    """Return whether a run starts from weights that were trained on many images."""
    return facts.initial_weights is not None and not facts.initial_weights.undertrained


def continued_rate(batch_size: int) -> Choice:
    """Choose DIET-CP's learning rate, multiplied by sqrt(batch size / DIET-CP's batch size)."""
    rate = round(PUBLISHED_RATE * math.sqrt(batch_size / PUBLISHED_BATCH), 8)
    factor = f"sqrt({batch_size}/{PUBLISHED_BATCH})"
    return rate, f"pretrained weights: DIET-CP's {PUBLISHED_RATE:g} at batch {PUBLISHED_BATCH}, times {factor}"


def epochs(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose few epochs for pretrained weights, and the usual number for random weights."""
    if not has_trained_weights(facts):
        return crops.epochs(facts, device)
    n_views = CPU_VIEWS if device == "cpu" else GPU_VIEWS
    n_epochs = max(MIN_EPOCHS, min(MAX_EPOCHS, round(n_views / facts.n_train)))
    return n_epochs, f"pretrained weights: few epochs, about {n_views:,} images seen"


def freeze(facts: DataAndMachine, shape: Shape) -> Choice:
    """Choose to freeze the first half of the stages of pretrained weights, and no stage of random weights."""
    if not has_trained_weights(facts):
        return 0, "all stages are trained"
    stages = shape().stages
    reason = f"pretrained weights: the first half of the {stages} stages suits any photographs"
    return int(FROZEN_STAGES_FRACTION * stages), reason


RULES = (epochs, freeze)
