"""Training of any objective with Lightning: the loop, its plan, schedules, checkpoints and metrics."""

from paucal.training.fit import Outcome as Outcome
from paucal.training.fit import fit as fit
from paucal.training.keeper import RunHooks as RunHooks
from paucal.training.keeper import Validation as Validation
from paucal.training.keeper import checkpoint_rows as checkpoint_rows
from paucal.training.keeper import checkpoint_step as checkpoint_step
from paucal.training.plan import Hardware as Hardware
from paucal.training.plan import Optimization as Optimization
from paucal.training.plan import Plan as Plan
from paucal.training.plan import PlanChange as PlanChange
from paucal.training.plan import TimePlan as TimePlan
from paucal.training.schedules import CosineWarmup as CosineWarmup
from paucal.training.schedules import LaggingEpochs as LaggingEpochs
from paucal.training.schedules import WarmupThenCosine as WarmupThenCosine
from paucal.training.timed_steps import largest_batch as largest_batch
