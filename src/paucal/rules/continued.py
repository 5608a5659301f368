"""Rules for pre-training that continues from weights trained on many images.

Such weights are good already: a high rate or many passes over a few images would replace what millions of images have
taught them. From random weights, and from runs that have seen few images, the usual rules hold.
"""

import math
from collections.abc import Sequence

from paucal.rules import crops
from paucal.rules.backbone import backbone_shape
from paucal.rules.facts import DataAndMachine
from paucal.rules.resolve import Choice

RATE, BATCH = 1e-4, 32  # the highest rate of DIET-CP (arXiv:2509.06990), and its batch
VIEWS, CPU_VIEWS = 100_000, 15_000  # images seen
MIN_EPOCHS, MAX_EPOCHS = 3, 30  # epochs
FROZEN_SHARE = 0.5  # share of the stages


def starts_trained(facts: DataAndMachine) -> bool:
    """Return whether a run starts from weights that are worth preserving."""
    return facts.start is not None and not facts.start.undertrained


def continued_rate(batch_size: int) -> Choice:
    """Return DIET-CP's rate, by the square root of the batch."""
    rate = round(RATE * math.sqrt(batch_size / BATCH), 8)
    return rate, f"pretrained weights: DIET-CP's {RATE:g} at batch {BATCH}, times sqrt({batch_size}/{BATCH})"


def epochs(facts: DataAndMachine, device: str | None) -> Choice:
    """Take a few passes from pretrained weights, and the usual number from random ones."""
    if not starts_trained(facts):
        return crops.epochs(facts, device)
    n_views = CPU_VIEWS if device == "cpu" else VIEWS
    n_epochs = max(MIN_EPOCHS, min(MAX_EPOCHS, round(n_views / facts.n_train)))
    return n_epochs, f"pretrained weights: a few passes, about {n_views:,} images seen"


def freeze(
    facts: DataAndMachine, model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int] | None
) -> Choice:
    """Freeze half of the stages of pretrained weights; none of random ones."""
    if not starts_trained(facts):
        return 0, "all stages learn"
    stages = backbone_shape(model, model_args, img_size).stages
    return int(FROZEN_SHARE * stages), f"pretrained weights: the first half of the {stages} stages suits any photograph"


RULES = (epochs, freeze)
