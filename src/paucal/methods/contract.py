"""The interface of methods: everything that a method or extra loss defines.

Runs, rules and the trainer use methods only through these classes. A default means that the method lacks this part.
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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The common part of methods and extra losses.

    Attributes:
        name: Name on the command line.
        summary: Description in one line.
        settings: Dataclass of its own settings, if any.
        paths: Names of its settings that are paths.
        rules: Rules for its own settings, and special rules for shared ones, by setting.
        check: Raises a UserError for settings that contradict each other.
        advice: Why its settings have no effect in a run without it, with advice; "{flag}", the run's "{method}" and
            the entry's "{name}" are filled in.
        superseded: Returns the settings of a recipe that do not apply beside the given ones, from the settings and
            their origins.
    """

    name: str
    summary: str
    settings: type | None = None
    paths: tuple[str, ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    check: Callable[[Any], None] = lambda settings: None
    advice: str = "with --method {method}: leave it out, or give --method {name}"
    superseded: Callable[[Any, Mapping[str, str]], Collection[str]] = lambda settings, given: ()

    @property
    def own(self) -> frozenset[str]:
        """The names of its own settings."""
        return frozenset() if self.settings is None else frozenset(item.name for item in fields(self.settings))


@dataclass(frozen=True, kw_only=True)
class TrainingMethod(Entry):
    """A supervised training method.

    Attributes:
        build: Builds the objective from the settings, the backbone and the extra losses by name.
        terms: Names of the extra losses that belong to the method.
        label_maps: Whether it learns from label maps.
        contrast: Method to compare a finished run with, and the reason.
    """

    build: Callable[[Any, FeatureBackbone, Mapping[str, Term]], Objective]
    terms: tuple[str, ...] = ()
    label_maps: bool = False
    contrast: tuple[str, str] | None = None


@dataclass(frozen=True)
class RunImages:
    """The images of a run, for extra losses that depend on them.

    Attributes:
        images: All images of the run.
        held_out: Keys of the validation and test images.
        statistics: Mean and standard deviation that normalise the images.
    """

    images: ImageSet
    held_out: Collection[str]
    statistics: Normalisation


@dataclass(frozen=True, kw_only=True)
class ExtraLoss(Entry):
    """A loss that is added to the supervised forward pass.

    Attributes:
        build: Builds the term from the settings, the backbone's specification and the backbone.
        settle: Adapts the term to the images of the run; raises a UserError if it must not learn from them.
    """

    build: Callable[[Any, BackboneSpec, FeatureBackbone], Term]
    settle: Callable[[Any, Any, RunImages], None] = lambda settings, term, run_images: None


@dataclass(frozen=True)
class HealthScale:
    """The reference scale for the health of a pre-training run.

    Attributes:
        feature_dim: Channels of the features.
        batch: Images per process, over which entropies and ranks are computed.
        grace_steps: Optimizer steps at the start in which only NaN and infinite values count.
    """

    feature_dim: int
    batch: int | None
    grace_steps: int


@dataclass(frozen=True, kw_only=True)
class PretrainingMethod(Entry):
    """A method for pre-training without labels.

    Attributes:
        title: Returns a short description of a run with these settings.
        build: Builds the objective from the settings, the backbone's specification and the groups of crops.
        weight_decay: Returns the weight decay of the optimizer, which an objective may scale in each step.
        clip: Returns the global norm to which gradients are clipped; None for no clipping, or if the objective
            clips by a rule of its own.
        judge: Returns the verdict on the health after some epochs, from the settings, the rows, the scale and the
            number of consecutive epochs that must show a symptom.
        settings_after_collapse: Returns the settings to change after a collapse, given the kind of verdict.
        n_prototypes: Returns the number of outputs of a head, K; a uniform output has the entropy ln K. None for
            methods without prototypes.
        stage: Returns the settings of the stage that a run is in after a number of epochs.
        next_stage_epoch: Returns the epoch after which the next stage starts; None for a single stage.
        stage_news: Message when the next stage starts.
        min_images: Minimum number of training images.
        settled_start: Whether a run from pretrained weights is expected to be healthy from the first step, since only
            its features are assessed, not new heads.
    """

    title: Callable[[Any], str]
    build: Callable[[Any, BackboneSpec, Sequence[Crops]], Objective]
    judge: Callable[[Any, Sequence[Row], HealthScale, int | None], Verdict | None]
    weight_decay: Callable[[Any], float] = lambda settings: settings.weight_decay
    clip: Callable[[Any], float | None] = lambda settings: settings.clip
    settings_after_collapse: Callable[[Any, str], dict[str, float]] = lambda settings, kind: {"lr": settings.lr / 2}
    n_prototypes: Callable[[Any], int | None] = lambda settings: None
    stage: Callable[[Any, int], Any] = lambda settings, epochs: settings
    next_stage_epoch: Callable[[Any], int | None] = lambda settings: None
    stage_news: str = ""
    min_images: int = 2
    settled_start: bool = False
