"""What an entry of the tables of methods brings with it: everything that is the method's own.

The life of a run, the rules and the trainer know methods through these classes only. What an entry leaves out has a
default that means "nothing of the kind".
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.data.images import ImageSet
from paucal.data.views.normalisation import Normalisation
from paucal.evaluation.collapse import Verdict
from paucal.objectives import Objective, Term
from paucal.rules.resolve import Rule
from paucal.types import Crops

Row = Mapping[str, float]


def nothing_to_check(settings: Any) -> None:
    """Find nothing wrong."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What methods and extra losses have in common.

    Attributes:
        name: what people type.
        summary: one line for them.
        settings: the dataclass of its own settings, if it has any.
        paths: those of them that are paths on this machine.
        rules: how its own settings are chosen, and shared ones otherwise than usual, by the setting's name.
        check: raises a UserError for settings that contradict each other, before any work is done.
        advice: why its settings have no effect in a run without it, and what to do; "{flag}" and "{method}" are filled
            in, such as "with --method {method}: leave it out, or add the loss with --add drloc".
        superseded: settings of a recipe that mean nothing beside what was given, whose origins come second.
    """

    name: str
    summary: str
    settings: type | None = None
    paths: tuple[str, ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    check: Callable[[Any], None] = nothing_to_check
    advice: str = ""
    superseded: Callable[[Any, Mapping[str, str]], Collection[str]] = lambda settings, given: ()

    @property
    def own(self) -> frozenset[str]:
        """The names of its own settings."""
        return frozenset() if self.settings is None else frozenset(item.name for item in fields(self.settings))


@dataclass(frozen=True, kw_only=True)
class TrainingMethod(Entry):
    """A way to learn from labels.

    Attributes:
        build: makes the objective from the settings, the backbone and the extra losses by name.
        terms: names of the extra losses that the method itself has.
        label_maps: whether it learns from label maps.
        contrast: the method that a finished run is worth comparing with, and why.
    """

    build: Callable[[Any, FeatureBackbone, Mapping[str, Term]], Objective]
    terms: tuple[str, ...] = ()
    label_maps: bool = False
    contrast: tuple[str, str] | None = None


@dataclass(frozen=True)
class Circumstances:
    """What an extra loss may know of the run it joins.

    Attributes:
        images: all images of the run.
        held_out: keys of the images that the run validates or tests with.
        statistics: mean and deviation with which its images are normalised.
    """

    images: ImageSet
    held_out: Collection[str]
    statistics: Normalisation


def nothing_to_settle(settings: Any, term: Any, circumstances: Circumstances) -> None:
    """Leave the term as it is."""


@dataclass(frozen=True, kw_only=True)
class ExtraLoss(Entry):
    """A loss that is added to one supervised forward pass.

    Attributes:
        build: makes the term from the settings, the backbone's description and the backbone.
        settle: lets the term know the images, once they are known; raises a UserError if it must not learn from them.
    """

    build: Callable[[Any, BackboneSpec, FeatureBackbone], Term]
    settle: Callable[[Any, Any, Circumstances], None] = nothing_to_settle


@dataclass(frozen=True)
class HealthScale:
    """What the health of a pre-training run is measured against.

    Attributes:
        feature_dim: channels of the features.
        batch: images per process, on which entropies and ranks are computed.
        grace_steps: optimizer steps of which nothing but non-finite numbers counts.
    """

    feature_dim: int
    batch: int | None
    grace_steps: int


@dataclass(frozen=True, kw_only=True)
class PretrainingMethod(Entry):
    """A way to learn without labels.

    Attributes:
        title: says in a few words what a run with these settings does.
        build: makes the objective from the settings, the backbone's description and the groups of crops.
        weight_decay: of the optimizer; an objective may scale it from step to step.
        clip: global norm to which gradients are clipped; None for the objective's own way, or none.
        judge: says what is wrong after the newest of some epochs, whose sign must show for so many in a row.
        calmer: settings to change when a run goes back after a verdict of some kind.
        prototypes: outputs of a head, whose ln is the entropy of an answer that means nothing; None without heads.
        stage: the settings of the stage that a run has reached after so many epochs.
        changes_after: the epoch after which the next stage begins; None where there is none.
        stage_news: what is said when it does.
        smallest_set: images below which nothing can be compared.
    """

    title: Callable[[Any], str]
    build: Callable[[Any, BackboneSpec, Sequence[Crops]], Objective]
    weight_decay: Callable[[Any], float]
    judge: Callable[[Any, Sequence[Row], HealthScale, int | None], Verdict | None]
    clip: Callable[[Any], float | None] = lambda settings: None
    calmer: Callable[[Any, str], dict[str, float]] = lambda settings, kind: {"lr": (settings.lr or 0.0) / 2}
    prototypes: Callable[[Any], int | None] = lambda settings: None
    stage: Callable[[Any, int], Any] = lambda settings, epochs: settings
    changes_after: Callable[[Any], int | None] = lambda settings: None
    stage_news: str = ""
    smallest_set: int = 2
