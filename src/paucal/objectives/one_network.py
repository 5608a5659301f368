"""Base class of pre-training methods with one network and no teacher: crops, features and health metrics."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paucal.backbones.spec import BackboneSpec
from paucal.distributed import all_reduce_mean
from paucal.losses.feature_health import effective_rank, feature_spread
from paucal.objectives.distilled_network import group_by_size
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.one_backbone import BackboneObjective
from paucal.objectives.self_distillation import HEALTH_INTERVAL_STEPS, crop_size
from paucal.types import Crops, DataRequest, Progress


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
        self._health: dict[str, Tensor] = {}
        self.data_request = DataRequest(tuple(crops), mixing=False, labels=False, smallest_batch=2)

    def embed(self, views: Sequence[Tensor], progress: Progress) -> list[Tensor]:
        """Return the (B, D) pooled features of each view; all views of one size share a single forward pass."""
        if self.training:
            self.tuner.set_modes(progress)
        pooled = list(views)
        for numbers in group_by_size(views):
            features = self.backbone(torch.cat([views[number] for number in numbers])).pooled
            for number, view_features in zip(numbers, features.chunk(len(numbers)), strict=True):
                pooled[number] = view_features
        if self.training and progress.step % min(HEALTH_INTERVAL_STEPS, progress.steps_per_epoch) == 0:
            self._record_health(pooled[0].detach())
        return pooled

    def diagnostics(self) -> dict[str, Tensor]:
        """Return the spread, the effective rank and the mean norm of the first view's features.

        Metrics are measured every `HEALTH_INTERVAL_STEPS` steps; the dict is empty if there is no new measurement.
        """
        health, self._health = self._health, {}
        return health

    @torch.no_grad()
    def _record_health(self, features: Tensor) -> None:
        health = {
            "feature_spread": feature_spread(features),
            "effective_rank": effective_rank(features),
            "feature_norm": torch.linalg.vector_norm(features.float(), dim=1).mean(),
        }
        self._health = dict(zip(health, all_reduce_mean(torch.stack(list(health.values()))), strict=True))
