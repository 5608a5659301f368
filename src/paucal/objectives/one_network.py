"""The common part of pre-training methods with one network and no teacher: crops, features, health, frozen stages."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paucal.backbones.spec import BackboneSpec
from paucal.distributed import all_reduce_mean
from paucal.losses.feature_health import effective_rank, feature_spread
from paucal.objectives.distilled_network import same_size
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.one_backbone import TunedBackbone
from paucal.objectives.self_distillation import HEALTH_EVERY, crop_size
from paucal.types import Crops, DataRequest, Progress


class OneNetwork(TunedBackbone):
    """A backbone for all views of an image; its heads are not deployed.

    Args:
        spec: Backbone without a classifier; its image size is that of the global views.
        crops: Groups of views with their sizes, global views first.
        drop_path_rate: Stochastic depth rate of the backbone.
        tuning: Frozen parts of a pretrained network; None to train all of it.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        crops: Sequence[Crops],
        drop_path_rate: float | None = None,
        tuning: FineTuning | None = None,
    ) -> None:
        super().__init__(spec.build([crop_size(group) for group in crops], drop_path_rate), tuning)
        self._health: dict[str, Tensor] = {}
        self.data_request = DataRequest(tuple(crops), mixing=False, labels=False, smallest_batch=2)

    def embed(self, views: Sequence[Tensor], progress: Progress) -> list[Tensor]:
        """Return per view the (B, D) pooled features; the backbone runs once per resolution."""
        if self.training:
            self.tuner.set_modes(progress)
        pooled = list(views)
        for members in same_size(views):
            features = self.backbone(torch.cat([views[number] for number in members])).pooled
            for number, view_features in zip(members, features.chunk(len(members)), strict=True):
                pooled[number] = view_features
        if self.training and progress.step % min(HEALTH_EVERY, progress.steps_per_epoch) == 0:
            self._record_health(pooled[0].detach())
        return pooled

    def diagnostics(self) -> dict[str, Tensor]:
        """Return the latest measurements of the first view's features: spread, directions, length."""
        newest, self._health = self._health, {}
        return newest

    @torch.no_grad()
    def _record_health(self, features: Tensor) -> None:
        health = {
            "feature_spread": feature_spread(features),
            "effective_rank": effective_rank(features),
            "feature_norm": torch.linalg.vector_norm(features.float(), dim=1).mean(),
        }
        self._health = dict(zip(health, all_reduce_mean(torch.stack(list(health.values()))), strict=True))
