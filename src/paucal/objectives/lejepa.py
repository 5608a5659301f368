"""LeJEPA (Balestriero and LeCun 2025, arXiv:2511.08544): self-supervised training of one network, without a teacher."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torchvision.ops import MLP

from paucal.backbones.spec import BackboneSpec
from paucal.losses.lejepa import INTEGRAL_LIMIT, KNOTS, WEIGHT, lejepa_loss, unit_directions
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.one_network import MultiViewObjective
from paucal.objectives.random_streams import derive_seed
from paucal.types import Batch, Crops, LossTerms, Progress

NORM_LAYERS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


@dataclass(frozen=True)
class LeJepaOptions:
    """Options of LeJEPA. Defaults are from the authors' minimal example, except `weight`, which is from their package.

    Attributes:
        weight: Weight lambda of SIGReg; the weight of the prediction loss is 1 - lambda.
        directions: Number of random directions on which embeddings are projected. New directions are drawn in every
            forward pass.
        projection_dim: Number of channels of the projected embeddings.
        hidden_dim: Width of the projector's two hidden layers.
        norm: Norm in the projector's hidden layers: "batch" as published, or "layer" if batch statistics cannot be
            used.
        knots: Number of integration points from 0 to `limit` in SIGReg.
        limit: Upper limit of SIGReg's integral, which is taken from -limit to limit.
        seed: Seed of the random directions.
    """

    weight: float = WEIGHT
    directions: int = 256
    projection_dim: int = 16
    hidden_dim: int = 2048
    norm: Literal["batch", "layer"] = "batch"
    knots: int = KNOTS
    limit: float = INTEGRAL_LIMIT
    seed: int = 0


class LeJepa(MultiViewObjective):
    """A backbone and a projector, trained with the LeJEPA loss on the views of each image.

    The loss pulls the embedding of every view towards the mean of the image's global views, and SIGReg prevents
    collapse. For the arguments other than `options` see `MultiViewObjective`.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        crops: Sequence[Crops],
        options: LeJepaOptions | None = None,
        drop_path_rate: float | None = None,
        tuning: FineTuning | None = None,
    ) -> None:
        super().__init__(spec, crops, drop_path_rate, tuning)
        self.options = options or LeJepaOptions()
        self.global_views, count = crops[0].count, sum(group.count for group in crops)
        if count < 2:
            raise ValueError(f"the loss compares the views of an image and needs at least 2, got {count}")
        widths = [self.options.hidden_dim, self.options.hidden_dim, self.options.projection_dim]
        self.projector: nn.Module = MLP(
            self.backbone.dim, widths, norm_layer=NORM_LAYERS[self.options.norm], inplace=None
        )

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the losses of `compute_losses` for the batch's views."""
        pooled = self.embed(batch.views, progress)
        # All views are projected together, as published, so that batch norms compute statistics over all views.
        return self.compute_losses(self.projector(torch.cat(pooled)).chunk(len(pooled)), progress)

    def compute_losses(self, projected: Sequence[Tensor], progress: Progress) -> LossTerms:
        """Return the losses "prediction" and "sigreg" of projected embeddings, one (B, D) tensor per view."""
        options = self.options
        loss_parts = lejepa_loss(
            projected,
            self.directions(progress, projected[0].device),
            global_views=self.global_views,
            weight=options.weight,
            knots=options.knots,
            limit=options.limit,
        )
        values = {"prediction": loss_parts.prediction, "sigreg": loss_parts.sigreg}
        return LossTerms(values, {"prediction": 1 - options.weight, "sigreg": options.weight})

    def directions(self, progress: Progress, device: torch.device) -> Tensor:
        """Draw the random directions of one forward pass.

        The seed is derived from the run's seed and the index of the pass, so all processes draw the same directions.
        """
        generator = torch.Generator(device=device)
        generator.manual_seed(derive_seed(self.options.seed, progress.micro_step))
        directions = unit_directions(self.options.projection_dim, self.options.directions, generator)
        return directions.to(device, non_blocking=True)
