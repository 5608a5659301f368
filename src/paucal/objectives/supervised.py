"""Supervised classification, with any number of extra losses on the same forward pass."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from paucal.backbones.features import FeatureBackbone
from paucal.losses.multi_label import multi_label_loss
from paucal.objectives.base import Term
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.one_backbone import ClassifierObjective
from paucal.types import Batch, DataRequest, FeatureRequest, LossTerms, Progress


class Supervised(ClassifierObjective):
    """Cross-entropy on labels, plus weighted extra losses such as DrLoc (`L_tot = L_ce + weight * L_drloc`).

    For images that may have several labels, the loss is the binary cross-entropy of each class, see `use_sigmoids`.

    The backbone runs once per batch, also if the extra losses need other feature maps. Label smoothing is applied after
    mixup or CutMix, which gives the same result as smoothing before mixing.

    `label_smoothing` is the fraction of the target that is spread over all classes. For the other arguments see
    `ClassifierObjective`.
    """

    data_request = DataRequest()

    def __init__(
        self,
        backbone: FeatureBackbone,
        terms: Mapping[str, Term] | None = None,
        label_smoothing: float = 0.0,
        tuning: FineTuning | None = None,
    ) -> None:
        super().__init__(backbone, terms, tuning)
        self.label_smoothing = label_smoothing
        self.uses_sigmoids = False
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", None, persistent=False)  # computed from the data, not learned

    def set_class_weights(self, weights: Tensor) -> None:
        """Weight the loss of each image by its class: (K,) weights with a mean of 1 over the training images.

        After `use_sigmoids`, these are factors for the loss of positive labels instead.
        """
        self.class_weights = weights.float()

    def use_sigmoids(self) -> None:
        """Train one sigmoid per class instead of a softmax, for (B, K) labels with any number of 1s."""
        self.uses_sigmoids = True

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the loss named "class" and the extra losses.

        Raises:
            ValueError: The batch has no labels.
        """
        if batch.labels is None:
            raise ValueError("a supervised objective needs labels, but the batch has none")
        if self.training:
            self.tuner.set_modes(progress)
        features = self.backbone.extract(batch.views[0], self.requests or [FeatureRequest()])
        logits = features[0].logits
        assert logits is not None  # the constructor checked for a classifier
        # The logits are converted here, since it depends on the device which functions autocast computes in float32.
        loss = self._loss(logits.float(), batch.labels)
        losses = LossTerms({"class": loss})
        self.add_terms(losses, features[: len(self.names)], batch, progress)
        return losses

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.uses_sigmoids:
            weights = None if self.class_weights is None else self.class_weights.to(logits.device)
            return multi_label_loss(logits, labels, self.label_smoothing, weights)
        if self.class_weights is None:
            return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        # The sum is divided by the number of images, as torch does for soft labels. For hard labels, torch divides by
        # the sum of the class weights.
        weights = self.class_weights.to(logits.device)
        total = F.cross_entropy(logits, labels, weights, label_smoothing=self.label_smoothing, reduction="sum")
        return total / len(logits)
