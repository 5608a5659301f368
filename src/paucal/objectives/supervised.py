"""Supervised classification, with any number of extra losses on the same forward pass."""

from collections.abc import Iterable, Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.losses.supervised import multi_label_loss
from paucal.objectives.base import Term
from paucal.objectives.finetuning import BackboneObjective, FineTuning, LowRankAdapters
from paucal.types import Batch, DataRequest, FeatureRequest, Features, LossTerms, Progress


class ClassifierObjective(BackboneObjective):
    """A method that trains one backbone with a classifier, and any number of extra losses.

    Args:
        backbone: Backbone with feature maps and a classifier.
        terms: Extra losses by name.
        tuning: Layer-wise decay, freezing and adapters; None to train all layers with the same learning rate.
        reserved_names: Names of the method's own losses, which cannot be names of extra losses.
    """

    def __init__(
        self,
        backbone: FeatureBackbone,
        terms: Mapping[str, Term] | None = None,
        tuning: FineTuning | None = None,
        reserved_names: Sequence[str] = ("class",),
    ) -> None:
        if backbone.num_classes < 2:
            raise ValueError(f"the backbone's classifier needs at least 2 classes, got {backbone.num_classes}")
        for name in reserved_names:
            if name in (terms or {}):
                raise ValueError(
                    f"an extra loss cannot be named {name!r}, which is a loss of the method: rename the extra loss"
                )
        super().__init__(backbone, tuning)
        # The terms are in an nn.ModuleList, since an nn.ModuleDict does not allow keys such as "keys" or "pop".
        self.names = tuple(terms or {})
        self.terms = nn.ModuleList((terms or {}).values())
        rank = self.tuner.options.lora_rank
        self.adapters = None if rank is None else LowRankAdapters(self, backbone.model, rank)

    @property
    def requests(self) -> list[FeatureRequest]:
        """The features that each extra loss needs, in the order of the losses."""
        return [term.request for term in self.named_terms().values()]

    def add_terms(self, losses: LossTerms, features: Sequence[Features], batch: Batch, progress: Progress) -> None:
        """Add the extra losses and their weights to `losses`; `features` contains one entry per request."""
        for (name, term), term_features in zip(self.named_terms().items(), features, strict=True):
            losses.values[name] = term(term_features, batch, progress)
            losses.weights[name] = term.weight(progress)

    def chance_levels(self) -> dict[str, float]:
        """Return the known chance levels of the extra losses, by name."""
        levels = {name: term.chance_level() for name, term in self.named_terms().items()}
        return {name: level for name, level in levels.items() if level is not None}

    def named_terms(self) -> dict[str, Term]:
        """Return the extra losses by name."""
        return dict(zip(self.names, self.terms, strict=True))  # type: ignore[arg-type]

    def compilable(self) -> Iterable[nn.Module]:
        """Return the backbone and the compilable modules of the extra losses."""
        return [self.backbone, *(module for term in self.named_terms().values() for module in term.compilable())]

    def before_step(self, progress: Progress) -> None:
        """Drop the gradients of the parameters and adapters that are frozen at this step."""
        super().before_step(progress)
        if self.adapters is not None:
            self.adapters.before_step(frozen=self.tuner.trains_classifier_only(progress))

    def after_step(self, progress: Progress) -> None:
        """Merge the adapters, if there are any, into the weights."""
        if self.adapters is not None:
            self.adapters.after_step()


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
        self.label_smoothing, self.uses_sigmoids = label_smoothing, False
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
        losses = LossTerms({"class": self._loss(logits.float(), batch.labels)})
        self.add_terms(losses, features[: len(self.names)], batch, progress)
        return losses

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        weights = None if self.class_weights is None else self.class_weights.to(logits.device)
        if self.uses_sigmoids:
            return multi_label_loss(logits, labels, self.label_smoothing, weights)
        if weights is None:
            return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        # The sum is divided by the number of images, as torch does for soft labels. For hard labels, torch divides by
        # the sum of the class weights.
        total = F.cross_entropy(logits, labels, weights, label_smoothing=self.label_smoothing, reduction="sum")
        return total / len(logits)
