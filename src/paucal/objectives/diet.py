"""DIET (one class per training image, arXiv:2302.10260) and its continued pre-training, DIET-CP (arXiv:2509.06990)."""

import math
from collections.abc import Sequence

from torch import nn

from paucal.backbones.spec import BackboneSpec
from paucal.losses.diet import SMOOTHING, diet_loss
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.one_network import MultiViewObjective
from paucal.types import Batch, Crops, LossTerms, Progress


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
