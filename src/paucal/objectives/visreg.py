"""VISReg (arXiv:2606.02572), which is LeJEPA with a different regularisation that sorts projected embeddings."""

from collections.abc import Sequence

from torch import Tensor

from paucal.losses.visreg import visreg_loss
from paucal.objectives.lejepa import LeJepa
from paucal.types import LossTerms, Progress


class VisReg(LeJepa):
    """A backbone and a projector, trained with the VISReg loss on the views of each image.

    The loss pulls the embedding of every view towards the mean of all views of the image, and the regularisation
    prevents collapse. The arguments are the same as for `LeJepa`; the options `knots` and `limit` have no effect.
    """

    def compute_losses(self, projected: Sequence[Tensor], progress: Progress) -> LossTerms:
        """Return the losses "prediction" and "shape" of projected embeddings, one (B, D) tensor per view."""
        weight = self.options.weight
        loss_parts = visreg_loss(projected, self.directions(progress, projected[0].device), weight=weight)
        values = {"prediction": loss_parts.prediction, "shape": loss_parts.regularisation}
        return LossTerms(values, {"prediction": 1 - weight, "shape": weight})
