"""The trainer of any objective."""

from paucal.training.checkpoints import checkpoint_rows, checkpoint_step
from paucal.training.failures import largest_batch
from paucal.training.fit import Outcome, fit
from paucal.training.keeper import Records, Watch
from paucal.training.plan import Hardware, Optimization, Plan, PlanChange, TimePlan
from paucal.training.schedules import CosineWarmup, LaggingEpochs, WarmupThenCosine

__all__ = [
    "CosineWarmup",
    "Hardware",
    "LaggingEpochs",
    "Optimization",
    "Outcome",
    "Plan",
    "PlanChange",
    "Records",
    "TimePlan",
    "WarmupThenCosine",
    "Watch",
    "checkpoint_rows",
    "checkpoint_step",
    "fit",
    "largest_batch",
]
