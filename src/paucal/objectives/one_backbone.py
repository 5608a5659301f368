"""Base classes of methods that train one backbone, with fine-tuning options and extra losses on the forward pass."""

from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from paucal.backbones.features import FeatureBackbone
from paucal.objectives.base import Term
from paucal.objectives.finetuning import BackboneTuner, FineTuning, TunedObjective
from paucal.objectives.low_rank import LowRankAdapters
from paucal.types import Batch, FeatureRequest, Features, LossTerms, Progress


class BackboneObjective(TunedObjective):
    """A method that trains one backbone, whose timm model is deployed without the method's heads."""

    def __init__(self, backbone: FeatureBackbone, tuning: FineTuning | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.tuner = BackboneTuner(backbone.model, tuning or FineTuning())

    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the backbone in a list."""
        return [self.backbone]

    def deployable(self) -> nn.Module:
        """Return the backbone's timm model."""
        return self.backbone.model


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
        return [term.request for term in self._terms()]

    def add_terms(self, losses: LossTerms, features: Sequence[Features], batch: Batch, progress: Progress) -> None:
        """Add the extra losses and their weights to `losses`; `features` contains one entry per request."""
        for name, term, term_features in zip(self.names, self._terms(), features, strict=True):
            losses.values[name] = term(term_features, batch, progress)
            losses.weights[name] = term.weight(progress)

    def chance_levels(self) -> dict[str, float]:
        """Return the known chance levels of the extra losses, by name."""
        levels = {name: term.chance_level() for name, term in self.named_terms().items()}
        return {name: level for name, level in levels.items() if level is not None}

    def named_terms(self) -> dict[str, Term]:
        """Return the extra losses by name."""
        return dict(zip(self.names, self._terms(), strict=True))

    def compilable(self) -> Iterable[nn.Module]:
        """Return the backbone and the compilable modules of the extra losses."""
        return [self.backbone, *(module for term in self._terms() for module in term.compilable())]

    def before_step(self, progress: Progress) -> None:
        """Drop the gradients of the parameters and adapters that are frozen at this step."""
        super().before_step(progress)
        if self.adapters is not None:
            self.adapters.before_step(frozen=self.tuner.trains_classifier_only(progress))

    def after_step(self, progress: Progress) -> None:
        """Merge the adapters, if there are any, into the weights."""
        if self.adapters is not None:
            self.adapters.after_step()

    def _terms(self) -> list[Term]:
        return [term for term in self.terms if isinstance(term, Term)]
