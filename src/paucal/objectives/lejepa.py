"""LeJEPA (Balestriero and LeCun 2025, arXiv:2511.08544): one network whose views predict each other's centre."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torchvision.ops import MLP

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.distributed import all_reduce_mean
from paucal.losses.feature_health import effective_rank, feature_spread
from paucal.losses.lejepa import KNOTS, LIMIT, WEIGHT, lejepa_loss, unit_directions
from paucal.objectives.base import Objective
from paucal.objectives.distilled_network import same_size
from paucal.objectives.random_streams import stream_seed
from paucal.objectives.self_distillation import crop_size
from paucal.types import Batch, Crops, DataRequest, LossTerms, Progress

HEALTH_EVERY = 10  # steps between two measurements of health
NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


@dataclass(frozen=True)
class LeJepaOptions:
    """Options of LeJEPA: values of the authors' minimal example, except the weight, which is the package's default.

    Attributes:
        weight: Share lambda of SIGReg in the loss.
        directions: Random directions along which embeddings are tested, drawn in every forward pass.
        projection_dim: Width of the projected embeddings.
        hidden_dim: Width of the projector's two hidden layers.
        norm: Normalisation of the projector; "batch" as published, "layer" if batch statistics cannot be used.
        knots: Points of SIGReg's integral from 0 to its limit.
        limit: End of SIGReg's integral, which goes from minus this to this.
        seed: Seed of the directions.
    """

    weight: float = WEIGHT
    directions: int = 256
    projection_dim: int = 16
    hidden_dim: int = 2048
    norm: Literal["batch", "layer"] = "batch"
    knots: int = KNOTS
    limit: float = LIMIT
    seed: int = 0


class LeJepa(Objective):
    """Every view of an image predicts the centre of its global views; SIGReg keeps embeddings normal.

    Args:
        spec: Backbone without a classifier; its image size is that of the global views.
        crops: Groups of views with their sizes, global views first.
        options: Options of the method.
        drop_path_rate: Stochastic depth rate of the backbone.

    Raises:
        UserError: the backbone cannot take the views.
        ValueError: there is only one view, or one has no size.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        crops: Sequence[Crops],
        options: LeJepaOptions | None = None,
        drop_path_rate: float | None = None,
    ) -> None:
        super().__init__()
        self.options = options or LeJepaOptions()
        self.global_views, count = crops[0].count, sum(group.count for group in crops)
        if count < 2:
            raise ValueError(f"{count} view of an image has nothing to predict; ask for at least 2")
        self.backbone = spec.build([crop_size(group) for group in crops], drop_path_rate)
        widths = [self.options.hidden_dim, self.options.hidden_dim, self.options.projection_dim]
        self.projector: nn.Module = MLP(self.backbone.dim, widths, norm_layer=NORMS[self.options.norm], inplace=None)
        self._health: dict[str, Tensor] = {}
        self.data_request = DataRequest(tuple(crops), mixing=False, labels=False, smallest_batch=2)

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the losses "prediction" and "sigreg"."""
        pooled = self._embed(batch.views)
        # All views together, as published, so that batch norms compute statistics over all of them.
        projected = self.projector(torch.cat(pooled)).chunk(len(pooled))
        options = self.options
        found = lejepa_loss(
            projected,
            self._directions(progress, pooled[0].device),
            global_views=self.global_views,
            weight=options.weight,
            knots=options.knots,
            limit=options.limit,
        )
        if self.training and progress.step % min(HEALTH_EVERY, progress.steps_per_epoch) == 0:
            self._look(pooled[0].detach())
        values = {"prediction": found.prediction, "sigreg": found.sigreg}
        return LossTerms(values, {"prediction": 1 - options.weight, "sigreg": options.weight})

    def deployable(self) -> nn.Module:
        """Return the timm model; the projector stays behind."""
        return self.backbone.model

    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the one backbone."""
        return [self.backbone]

    def diagnostics(self) -> dict[str, Tensor]:
        """Return the latest measurements of the first view's features: spread, directions, length."""
        newest, self._health = self._health, {}
        return newest

    def _embed(self, views: Sequence[Tensor]) -> list[Tensor]:
        """Return per view the (B, D) pooled features; the backbone runs once per resolution."""
        pooled = list(views)
        for members in same_size(views):
            features = self.backbone(torch.cat([views[number] for number in members])).pooled
            for number, one in zip(members, features.chunk(len(members)), strict=True):
                pooled[number] = one
        return pooled

    def _directions(self, progress: Progress, device: torch.device) -> Tensor:
        """Draw directions that depend on the seed and the forward pass alone, so that all processes have the same."""
        generator = torch.Generator(device=device)
        generator.manual_seed(stream_seed(self.options.seed, progress.micro_step))
        drawn = unit_directions(self.options.projection_dim, self.options.directions, generator)
        return drawn.to(device, non_blocking=True)

    @torch.no_grad()
    def _look(self, features: Tensor) -> None:
        found = {
            "feature_spread": feature_spread(features),
            "effective_rank": effective_rank(features),
            "feature_norm": torch.linalg.vector_norm(features.float(), dim=1).mean(),
        }
        self._health = dict(zip(found, all_reduce_mean(torch.stack(list(found.values()))), strict=True))
