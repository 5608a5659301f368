"""The training objective of a detector: its losses and the fine-tuning of its backbone."""

from collections.abc import Iterable, Sequence

from torch import nn

from paucal.backbones import FeatureBackbone
from paucal.objectives.finetuning import BackboneTuner, FineTuning, TunedObjective
from paucal.tasks.detection.batches import BoxBatch
from paucal.tasks.detection.network.detector import Detector
from paucal.types import DataRequest, LossTerms, Progress

BACKBONE_PREFIX = "detector.stages.backbone.model."  # prefix of the backbone's parameter names in the objective


class DetectionObjective(TunedObjective):
    """The losses of a detector; `backbone_lr` is a factor on the learning rate of the backbone."""

    data_request = DataRequest(labels=False, mixing=False)

    def __init__(self, detector: Detector, tuning: FineTuning, backbone_lr: float = 1.0) -> None:
        super().__init__()
        self.detector = detector
        self.tuner = BackboneTuner(detector.stages.backbone.model, tuning, BACKBONE_PREFIX, backbone_lr)

    def forward(self, batch: BoxBatch, progress: Progress) -> LossTerms:  # type: ignore[override]
        """Return the losses of the proposal network and of the heads, with their weights."""
        self.tuner.set_modes(progress)
        values = self.detector.losses(batch.images, batch.image_sizes(), batch.boxes, batch.labels, batch.masks)
        return LossTerms(values, self.detector.loss_weights())

    def deployable(self) -> nn.Module:
        """Return the detector."""
        return self.detector

    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return a list with the detector's backbone."""
        return [self.detector.stages.backbone]

    def compilable(self) -> Iterable[nn.Module]:
        """Return no modules, since each of the many image sizes would need a new compilation."""
        return []
