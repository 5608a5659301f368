"""Choose the precision of frozen features and of tuning: as given, or bfloat16 if it is faster on this CPU."""

from contextlib import closing

import torch
from torch import Tensor

from paucal.models.features import ClassifierInputExtractor
from paucal.models.precision import (
    EXPLICIT_CHOICES,
    FLOAT32,
    MEASURED_IMAGES,
    MIN_SPEEDUP,
    PrecisionChoice,
    bfloat16_flags,
    choose_precision,
    measure_speed,
)
from paucal.runner.images import eval_loader
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.state import TuneState, is_automatic_setting
from paucal.training.timed_steps import forward_and_backward, timed_steps
from paucal.types import Batch


def choose_feature_precision(setup: TrainingSetup) -> PrecisionChoice:
    """Return the precision of frozen features: the given precision, or the faster one of float32 and bfloat16."""
    settings = setup.settings
    if settings.device != "cpu":
        return FLOAT32
    if setup.origins.get("precision") in ("flag", "given"):  # a config may contain the choice of an earlier run
        return EXPLICIT_CHOICES.get(settings.precision, FLOAT32)
    if not bfloat16_flags():
        return FLOAT32
    counts = setup.data.counts()
    with closing(ClassifierInputExtractor(setup.objective.deployable().eval())) as inputs:
        images = _sample_batch(setup).views[0]
        return choose_precision(inputs, images, settings.model, counts["train"] + counts["val"], has_logits=False)


def choose_training_precision(state: TuneState) -> None:
    """Tune in bfloat16 if bfloat16 gives nearly the same features and makes a training step faster on this machine."""
    setup, choice = state.setup, state.precision
    may_change = is_automatic_setting(setup, "precision") and setup.settings.precision == "32-true"
    if choice.dtype is None or not choice.measured or not may_change:
        return
    batch, device = _sample_batch(setup), torch.device("cpu")
    key = f"{setup.settings.model}, tuned with --freeze {setup.settings.freeze}"

    def step(images: Tensor) -> Tensor:
        return forward_and_backward(setup.objective, batch, device, precision=None)

    with timed_steps(setup.objective.train(), device):
        step(batch.views[0])  # warm-up
        speed = measure_speed(step, batch.views[0], key)
    if speed < MIN_SPEEDUP:
        state.console.say(f"precision of tuning: float32: a step is {speed:.1f} times as fast in bfloat16 here")
        return
    reason = f"a step is {speed:.1f} times as fast in bfloat16 here, and the features agree"
    state.console.say(f"precision of tuning: bfloat16: {reason}")
    state.replace_setup(state.reassemble(precision="bf16-mixed"), {"precision": reason})


def _sample_batch(setup: TrainingSetup) -> Batch:
    rows = setup.data.split_indices("train")[:MEASURED_IMAGES]
    return next(iter(eval_loader(setup.data, rows, setup.card.preprocessing, setup.settings)))
