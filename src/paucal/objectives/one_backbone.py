"""The common part of methods that train one backbone: extra losses on its forward pass, and fine-tuning."""

from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from paucal.backbones.features import FeatureBackbone
from paucal.objectives.base import Term
from paucal.objectives.finetuning import BackboneTuner, FineTuning, TunedObjective
from paucal.objectives.low_rank import LowRankAdapters
from paucal.types import Batch, FeatureRequest, Features, LossTerms, Progress


class TunedBackbone(TunedObjective):
    """A method that trains one backbone, whose model is deployed without heads."""

    def __init__(self, backbone: FeatureBackbone, tuning: FineTuning | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.tuner = BackboneTuner(backbone.model, tuning or FineTuning())

    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the one backbone."""
        return [self.backbone]

    def deployable(self) -> nn.Module:
        """Return the timm model without the heads."""
        return self.backbone.model


class OneBackbone(TunedBackbone):
    """A method that trains one backbone with a classifier, and any number of extra losses.

    Args:
        backbone: Backbone with grids and logits.
        terms: Extra losses by name, each with its own weight.
        tuning: Layer-wise decay, freezing and adapters of the backbone; by default all layers have the same rate.
        own: Names of the method's own losses, which terms must not use.
    """

    def __init__(
        self,
        backbone: FeatureBackbone,
        terms: Mapping[str, Term] | None = None,
        tuning: FineTuning | None = None,
        own: Sequence[str] = ("class",),
    ) -> None:
        if backbone.num_classes < 2:
            raise ValueError(f"a backbone that learns classes needs at least 2 of them, got {backbone.num_classes}")
        for name in own:
            if name in (terms or {}):
                raise ValueError(f"the name {name!r} is used by a loss of the method; rename the term")
        super().__init__(backbone, tuning)
        # A list, since an nn.ModuleDict does not allow names of its own methods.
        self.names = tuple(terms or {})
        self.terms = nn.ModuleList((terms or {}).values())
        rank = self.tuner.options.lora_rank
        self.adapters = None if rank is None else LowRankAdapters(self, backbone.model, rank)

    @property
    def requests(self) -> list[FeatureRequest]:
        """The features that each term reads, in the order of the terms."""
        return [term.request for term in self._terms()]

    def add_terms(self, losses: LossTerms, features: Sequence[Features], batch: Batch, progress: Progress) -> None:
        """Add the terms and their weights to the losses; `features` answer `requests`."""
        for name, term, term_features in zip(self.names, self._terms(), features, strict=True):
            losses.values[name] = term(term_features, batch, progress)
            losses.weights[name] = term.weight(progress)

    def chance_levels(self) -> dict[str, float]:
        """Return the chance levels of the terms, where known."""
        levels = {name: term.chance_level() for name, term in self.named_terms().items()}
        return {name: level for name, level in levels.items() if level is not None}

    def named_terms(self) -> dict[str, Term]:
        """Return the extra losses by name."""
        return dict(zip(self.names, self._terms(), strict=True))

    def compilable(self) -> Iterable[nn.Module]:
        """Return the backbone and the compilable modules of the extra losses."""
        return [self.backbone, *(module for term in self._terms() for module in term.compilable())]

    def before_step(self, progress: Progress) -> None:
        """Drop the gradients of the parameters and adapters that the fine-tuning freezes at this step."""
        super().before_step(progress)
        if self.adapters is not None:
            self.adapters.before_step(held=self.tuner.holds(progress))

    def after_step(self, progress: Progress) -> None:
        """Update the weights with the adapters, if there are any."""
        if self.adapters is not None:
            self.adapters.after_step()

    def _terms(self) -> list[Term]:
        return [term for term in self.terms if isinstance(term, Term)]
