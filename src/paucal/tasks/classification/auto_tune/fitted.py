"""A linear head on frozen features, with the features that later steps read."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from paucal.tasks.classification.auto_tune.head_race import RaceResult
from paucal.tasks.classification.auto_tune.learning_curve import LearningCurve
from paucal.tasks.classification.auto_tune.probe import Head


@dataclass(frozen=True)
class Fitted:
    """A linear head on frozen features.

    Attributes:
        head: Linear head on the last features.
        features: (N + V, D) features of the training and of the validation images.
        staged: Whether the pooled last stages follow the last features in them.
        rows: (N,) positions among the training images.
        score: Score of the best head on the validation images; cross-validated without validation images.
        seconds: Seconds of one image through the frozen network in float32.
        race: Comparison with heads that read the last stages too; without a head where they did not win.
        race_seconds: Seconds of the comparison.
        curve: Learning curve of the best head; None where it was not asked for.
        losses: (V,) calibrated losses of the best head on the validation images, in nats.
    """

    head: Head
    features: Tensor
    staged: bool
    rows: Tensor
    score: float
    seconds: float
    race: RaceResult = field(default_factory=RaceResult)
    race_seconds: float = 0.0
    curve: LearningCurve | None = None
    losses: Sequence[float] = ()

    @property
    def images(self) -> int:
        """Number of training images that it was fitted to."""
        return len(self.rows)
