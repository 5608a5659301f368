"""Pre-training methods with one network and no teacher: DIET, LeJEPA and VISReg.

DIET (arXiv:2302.10260, continued pre-training: arXiv:2509.06990) has one class per training image. LeJEPA (Balestriero
and LeCun 2025, arXiv:2511.08544) and VISReg (arXiv:2606.02572) predict views, and differ in their regularisation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torchvision.ops import MLP

from paucal.backbones.spec import BackboneSpec
from paucal.losses.diet import SMOOTHING, diet_loss
from paucal.losses.feature_health import effective_rank, feature_spread
from paucal.losses.lejepa import INTEGRAL_LIMIT, KNOTS, WEIGHT, lejepa_loss, unit_directions
from paucal.losses.visreg import visreg_loss
from paucal.objectives.base import seed_of_step
from paucal.objectives.distilled_network import group_by_size
from paucal.objectives.finetuning import BackboneObjective, FineTuning
from paucal.objectives.self_distillation import crop_size
from paucal.types import Batch, Crops, DataRequest, LossTerms, Progress

NORM_LAYERS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class MultiViewObjective(BackboneObjective):
    """A pre-training method in which one backbone gets all views of an image.

    Args:
        spec: Specification of a backbone without a classifier, with the image size of the global views.
        crops: Groups of views, each with its size; the global views come first.
        drop_path_rate: Stochastic depth rate of the backbone.
        tuning: Fine-tuning options, such as which parts of the backbone are frozen; None to train the whole backbone.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        crops: Sequence[Crops],
        drop_path_rate: float | None = None,
        tuning: FineTuning | None = None,
    ) -> None:
        super().__init__(spec.build([crop_size(group) for group in crops], drop_path_rate), tuning)
        self.data_request = DataRequest(tuple(crops), mixing=False, labels=False, smallest_batch=2)

    def embed(self, views: Sequence[Tensor], progress: Progress) -> list[Tensor]:
        """Return the (B, D) pooled features of each view; all views of one size share a single forward pass."""
        if self.training:
            self.tuner.set_modes(progress)
        pooled = list(views)  # placeholders for the features of each view
        for numbers in group_by_size(views):
            features = self.backbone(torch.cat([views[number] for number in numbers])).pooled
            for number, view_features in zip(numbers, features.chunk(len(numbers)), strict=True):
                pooled[number] = view_features
        if self.measures_health(progress):
            features = pooled[0].detach()
            with torch.no_grad():
                self.record_health(
                    {
                        "feature_spread": feature_spread(features),
                        "effective_rank": effective_rank(features),
                        "feature_norm": torch.linalg.vector_norm(features.float(), dim=1).mean(),
                    }
                )
        return pooled


class Diet(MultiViewObjective):
    """A backbone with a linear classifier on the pooled features that predicts which image a view was cropped from.

    `images` is the number of classes, usually the number of training images; image i has the class i modulo this
    number. `smoothing` is the fraction of the target that is spread over all classes. For the other arguments see
    `MultiViewObjective`.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        crops: Sequence[Crops],
        images: int,
        smoothing: float = SMOOTHING,
        drop_path_rate: float | None = None,
        tuning: FineTuning | None = None,
    ) -> None:
        super().__init__(spec, crops, drop_path_rate, tuning)
        self.smoothing, self.images = smoothing, images
        self.classifier = nn.Linear(self.backbone.dim, images, bias=False)

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the classification loss, named "image"."""
        logits = [self.classifier(pooled) for pooled in self.embed(batch.views, progress)]
        return LossTerms({"image": diet_loss(logits, batch.ids % self.images, self.smoothing)})

    def chance_levels(self) -> dict[str, float]:
        """Return the loss of predicting the same probability for all classes."""
        return {"image": math.log(self.images)}


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
        generator.manual_seed(seed_of_step(self.options.seed, progress.micro_step))
        directions = unit_directions(self.options.projection_dim, self.options.directions, generator)
        return directions.to(device, non_blocking=True)


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
