"""VISReg (arXiv:2606.02572): LeJEPA's network, whose embeddings are kept normal by their sorted projections."""

from collections.abc import Sequence

from torch import Tensor

from paucal.losses.visreg import visreg_loss
from paucal.objectives.lejepa import LeJepa
from paucal.types import LossTerms, Progress


class VisReg(LeJepa):
    """Every view of an image predicts the mean of all its views; sorted projections keep embeddings normal.

    Takes the arguments of `LeJepa`; of its options, `knots` and `limit` have no effect.
    """

    def compare(self, projected: Sequence[Tensor], progress: Progress) -> LossTerms:
        """Return the losses "prediction" and "shape" of the projected views."""
        weight = self.options.weight
        loss_parts = visreg_loss(projected, self.directions(progress, projected[0].device), weight=weight)
        values = {"prediction": loss_parts.prediction, "shape": loss_parts.regularisation}
        return LossTerms(values, {"prediction": 1 - weight, "shape": weight})
