"""The interface of methods: everything that a training method, extra loss or pre-training method defines.

Runs, rules and the trainer use methods only through these classes. A method may leave out fields that have a default.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.data.images import ImageSet
from paucal.data.views.normalisation import Normalisation
from paucal.evaluation.collapse import PATIENCE, Verdict
from paucal.objectives import Objective, Term
from paucal.rules.resolve import Rule
from paucal.settings.options import flag, setting_fields
from paucal.types import Crops, UserError

Row = Mapping[str, float]  # the metrics of an epoch, by name


@dataclass(frozen=True, kw_only=True)
class MethodOrLoss:
    """The common fields of methods and extra losses."""

    name: str  # name on the command line
    # Dataclass of the settings that only this entry has; None if the entry adds no settings
    settings: type | None = None
    paths: tuple[str, ...] = ()  # names of the entry's own settings whose values are paths
    # Rules by name of the setting: for the entry's own settings, and instead of the common rules for shared settings
    rules: Mapping[str, Rule] = field(default_factory=dict)
    check: Callable[[Any], None] = lambda settings: None  # raises a UserError for settings that contradict each other
    # End of the error message "FLAG has no effect ..." for a flag of this entry in a run that does not use the entry.
    # "{flag}", the run's "{method}" and the entry's "{name}" are replaced by their values.
    advice: str = "with --method {method}: remove {flag}, or give --method {name}"
    # Returns the names of the settings that are not taken from the recipe, because they do not apply together with the
    # given settings; called with all settings, and with the origin of each given setting
    superseded: Callable[[Any, Mapping[str, str]], Collection[str]] = lambda settings, origins: ()

    @property
    def own_settings(self) -> frozenset[str]:
        """The names of the settings that only this entry has."""
        return frozenset() if self.settings is None else frozenset(item.name for item in fields(self.settings))


@dataclass(frozen=True, kw_only=True)
class TrainingMethod(MethodOrLoss):
    """A supervised training method."""

    # Builds the objective from the settings, the backbone and the extra losses by name
    build: Callable[[Any, FeatureBackbone, Mapping[str, Term]], Objective]
    terms: tuple[str, ...] = ()  # names of the extra losses that belong to the method
    label_maps: bool = False  # whether the method learns from label maps
    # Name of a method to compare a finished run with, and what the comparison shows; None if no comparison is suggested
    suggested_comparison: tuple[str, str] | None = None


@dataclass(frozen=True)
class RunImages:
    """The images of a run, for extra losses that depend on the images."""

    images: ImageSet
    held_out: Collection[str]  # keys of the validation and test images in `images`
    statistics: Normalisation  # mean and standard deviation that normalise the images


@dataclass(frozen=True, kw_only=True)
class ExtraLoss(MethodOrLoss):
    """A loss that is added to the loss of a training method, and that uses the same forward pass."""

    # Builds the term from the settings, the backbone's specification and the backbone
    build: Callable[[Any, BackboneSpec, FeatureBackbone], Term]
    # Adapts the term to the images of the run, from the settings, the term and the images; raises a UserError if the
    # term must not learn from them
    adapt_to_run: Callable[[Any, Any, RunImages], None] = lambda settings, term, run_images: None


@dataclass(frozen=True)
class RunScale:
    """The numbers that describe the size of a pre-training run; limits of healthy metrics are computed from these."""

    feature_dim: int  # number of channels of the features
    # Number of images per process, over which entropies and ranks are computed; None (unknown) counts as infinite
    batch: int | None
    grace_steps: int  # number of first optimizer steps in which only NaN and infinite values count as unhealthy

    def limits(self, patience: int | None) -> dict[str, Any]:
        """Return keyword arguments for the functions in `evaluation.collapse`; None means the default patience."""
        patience = PATIENCE if patience is None else patience
        return {"batch": self.batch, "grace_steps": self.grace_steps, "patience": patience}


@dataclass(frozen=True, kw_only=True)
class PretrainingMethod(MethodOrLoss):
    """A method for pre-training without labels."""

    title: Callable[[Any], str]  # returns a short description of a run with these settings
    # Builds the objective from the settings, the backbone's specification and the groups of crops
    build: Callable[[Any, BackboneSpec, Sequence[Crops]], Objective]
    # Takes the settings, the metrics of all epochs so far, the scale of the run, and the number of consecutive epochs
    # that must show a symptom (None for the default); returns the failure that the metrics show, or None if the run is
    # healthy
    find_collapse: Callable[[Any, Sequence[Row], RunScale, int | None], Verdict | None]
    # Returns the weight decay of the optimizer, which an objective may scale in each step
    weight_decay: Callable[[Any], float] = lambda settings: settings.weight_decay
    # Returns the global norm to which gradients are clipped; None if gradients are not clipped, or if the objective
    # clips gradients itself
    clip: Callable[[Any], float | None] = lambda settings: settings.clip
    # Returns new values for some settings after a collapse, from the settings and the kind of the verdict
    settings_after_collapse: Callable[[Any, str], dict[str, float]] = lambda settings, kind: {"lr": settings.lr / 2}
    # Returns the number of outputs of a head, which limits the entropy of the outputs; None for methods without
    # prototypes
    n_prototypes: Callable[[Any], int | None] = lambda settings: None
    # Returns the settings of the current training stage, from all settings and the number of finished epochs
    stage_settings: Callable[[Any, int], Any] = lambda settings, epochs: settings
    # Returns the epoch after which the next stage starts; None if the run has a single stage
    next_stage_epoch: Callable[[Any], int | None] = lambda settings: None
    next_stage_message: str = ""  # message that is printed when the next stage starts
    min_images: int = 2  # minimum number of training images
    # Whether a run from pretrained weights is expected to be healthy from the first step, because `find_collapse` reads
    # features and not the outputs of new heads
    healthy_from_start: bool = False


def unused_settings(
    used_entries: Iterable[MethodOrLoss], all_entries: Iterable[MethodOrLoss]
) -> dict[str, MethodOrLoss]:
    """Return the settings that have no effect in a run with `used_entries`, as a dict from the name to the entry."""
    in_use = {name for entry in used_entries for name in entry.own_settings}
    return {name: entry for entry in all_entries for name in sorted(entry.own_settings - in_use)}


def refuse_unused(
    settings: Any, origins: Mapping[str, str], used_entries: Iterable[MethodOrLoss], all_entries: Iterable[MethodOrLoss]
) -> None:
    """Raise a UserError if the user has given a setting that has no effect in the run.

    A config file may contain every setting, so default values in a config file are accepted; a flag is refused even if
    it gives the default.
    """
    unused, declared = unused_settings(used_entries, all_entries), setting_fields(settings)
    for name, origin in origins.items():
        is_default_of_config = origin == "config" and getattr(settings, name) == declared[name].default
        if name in unused and not is_default_of_config:
            entry = unused[name]
            advice = entry.advice.format(flag=flag(name), method=settings.method, name=entry.name)
            raise UserError(f"{flag(name)} has no effect {advice}.")
