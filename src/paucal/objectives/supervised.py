"""Ordinary supervised classification, with any number of extra losses on the same forward pass."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import nn

from paucal.backbones.features import FeatureBackbone
from paucal.objectives.base import Objective, Term
from paucal.objectives.finetuning import BackboneTuner, FineTuning
from paucal.types import Batch, DataRequest, FeatureRequest, GroupScales, LossTerms, Progress


class Supervised(Objective):
    """Cross-entropy on labels, plus weighted terms such as DrLoc (`L_tot = L_ce + weight * L_drloc`).

    The backbone runs once per batch, whatever the terms read. Smoothing is applied to hard and to mixed labels
    alike, which equals smoothing the labels before they are mixed.

    Args:
        backbone: gives grids and logits.
        terms: extra losses by name; each one carries its own weight.
        label_smoothing: share of the label spread over all classes.
        tuning: layer-wise decay and freezing of the backbone; by default all of it is trained alike.
    """

    data_request = DataRequest()

    def __init__(
        self,
        backbone: FeatureBackbone,
        terms: Mapping[str, Term] | None = None,
        label_smoothing: float = 0.0,
        tuning: FineTuning | None = None,
    ) -> None:
        super().__init__()
        if backbone.num_classes < 2:
            raise ValueError(f"a supervised backbone needs at least 2 classes, got {backbone.num_classes}")
        if "class" in (terms or {}):
            raise ValueError("the name 'class' is taken by the cross-entropy; name the term otherwise")
        self.backbone = backbone
        # An nn.ModuleDict refuses names of its own methods, a list does not.
        self.names = tuple(terms or {})
        self.terms = nn.ModuleList((terms or {}).values())
        self.label_smoothing = label_smoothing
        self.tuner = BackboneTuner(backbone.model, tuning or FineTuning())

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the loss named "class" and one per term.

        Raises:
            ValueError: the batch has no labels.
        """
        if batch.labels is None:
            raise ValueError("a supervised objective was given a batch without labels")
        if self.training:
            self.tuner.set_modes(progress)
        requests = [term.request for term in self._terms()]
        features = self.backbone.extract(batch.views[0], requests or [FeatureRequest()])
        logits = features[0].logits
        assert logits is not None  # the constructor has seen to a classifier
        losses = LossTerms({"class": F.cross_entropy(logits, batch.labels, label_smoothing=self.label_smoothing)})
        for name, term, seen in zip(self.names, self._terms(), features, strict=bool(requests)):
            losses.values[name] = term(seen, batch, progress)
            losses.weights[name] = term.weight(progress)
        return losses

    def chance_levels(self) -> dict[str, float]:
        """Return those of the terms that know theirs."""
        levels = {name: term.chance_level() for name, term in zip(self.names, self._terms(), strict=True)}
        return {name: level for name, level in levels.items() if level is not None}

    def deployable(self) -> nn.Module:
        """Return the timm model; the heads of the terms stay behind."""
        return self.backbone.model

    def parameter_group(self, name: str) -> str:
        """Return the label of the backbone's layer where layers have rates of their own."""
        return self.tuner.label(name)

    def group_scales(self, progress: Progress) -> GroupScales:
        """Return the factors of the fine-tuning."""
        return self.tuner.scales(progress)

    def before_step(self, progress: Progress) -> None:
        """Hold still what the fine-tuning holds."""
        self.tuner.before_step(progress)

    def _terms(self) -> list[Term]:
        return [term for term in self.terms if isinstance(term, Term)]
