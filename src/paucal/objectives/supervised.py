"""Ordinary supervised classification, with any number of extra losses on the same forward pass."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from paucal.backbones.features import FeatureBackbone
from paucal.losses.multi_label import multi_label_loss
from paucal.objectives.base import Term
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.one_backbone import OneBackbone
from paucal.types import Batch, DataRequest, FeatureRequest, LossTerms, Progress


class Supervised(OneBackbone):
    """Cross-entropy on labels, plus weighted terms such as DrLoc (`L_tot = L_ce + weight * L_drloc`).

    For images that may have several labels it is the binary cross-entropy of each class, see `judge_classes_apart`.

    The backbone runs once per batch, whatever the terms read. Smoothing is applied to hard and to mixed labels
    alike, which equals smoothing the labels before they are mixed.

    Args:
        backbone: Backbone with grids and logits.
        terms: Extra losses by name, each with its own weight.
        label_smoothing: Share of the label that is spread over all classes.
        tuning: Layer-wise decay and freezing of the backbone; by default all layers have the same rate.
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
        self.classes_apart = False
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", None, persistent=False)  # computed from the data, not learned

    def weigh_classes(self, weights: Tensor) -> None:
        """Weight the classes in the loss.

        Args:
            weights: (K,) weights with mean 1 over the training images; with one sigmoid per class, factors on the loss
                of positive images.
        """
        self.class_weights = weights.float()

    def judge_classes_apart(self) -> None:
        """Train one sigmoid per class, for (B, K) labels with any number of 1s (`losses.multi_label`)."""
        self.classes_apart = True

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the loss named "class" and one per term.

        Raises:
            ValueError: the batch has no labels.
        """
        if batch.labels is None:
            raise ValueError("a supervised objective needs labels, but the batch has none")
        if self.training:
            self.tuner.set_modes(progress)
        features = self.backbone.extract(batch.views[0], self.requests or [FeatureRequest()])
        logits = features[0].logits
        assert logits is not None  # the constructor checks for a classifier
        # Not left to autocast: which functions it computes in float32 differs between devices.
        loss = self._loss(logits.float(), batch.labels)
        losses = LossTerms({"class": loss})
        self.add_terms(losses, features[: len(self.names)], batch, progress)
        return losses

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.classes_apart:
            weights = None if self.class_weights is None else self.class_weights.to(logits.device)
            return multi_label_loss(logits, labels, self.label_smoothing, weights)
        if self.class_weights is None:
            return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        # Divided by the number of images, so that hard and soft labels have equal weight.
        weights = self.class_weights.to(logits.device)
        total = F.cross_entropy(logits, labels, weights, label_smoothing=self.label_smoothing, reduction="sum")
        return total / len(logits)
