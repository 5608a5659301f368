"""A linear head on frozen features, with those features for later steps."""

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
        staged: Whether `features` has the pooled last stages after the last features.
        rows: (N,) positions among the training images.
        score: Score of the best head on the validation images; cross-validated without validation images.
        seconds: Seconds of one image through the frozen network in float32.
        race: Comparison with heads that read the last stages too; has no head if none of them won.
        race_seconds: Seconds of the comparison.
        curve: Learning curve of the best head; None if not requested.
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
        """Number of training images that the head was fitted to."""
        return len(self.rows)
