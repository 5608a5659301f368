"""The arms of a comparison: each has a name and the settings in which it differs from the others."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from paucal.methods.training import unused_by
from paucal.methods.training_settings import TrainSettings
from paucal.types import UserError
from paucal.verbs.compare.settings import GridSettings

METHODS = ("supervised", "drloc")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        way: Method as given, or the name of an arm with flags.
        model: Model as given; None if it is chosen.
        share: Share of the training images as given; None for all of them.
        settings: Settings of `paucal train` in which the arm differs.
        against: Way that it is compared with; "" for the first.
    """

    way: str
    model: str | None
    share: str | None
    settings: Mapping[str, Any] = field(hash=False)
    against: str = ""

    @property
    def name(self) -> str:
        """Unique name in the comparison."""
        share = None if self.share is None else f"{self.share} of the images"
        return ", ".join(part for part in (self.way, self.model, share) if part is not None)


def make_arms(asked: GridSettings, named: Mapping[str, Mapping[str, Any]]) -> tuple[Arm, ...]:
    """Return an arm for every combination of way, model and share of the images, baselines first.

    Args:
        asked: Methods, models and shares.
        named: Settings of further ways by name.

    Raises:
        UserError: Something is given twice, or a share is invalid.
    """
    methods = asked.methods if asked.methods is not None or named else list(METHODS)
    ways = [(word, _method(word)) for word in methods or ()] + [(name, dict(own)) for name, own in named.items()]
    _refuse_twice("--methods", [name for name, _ in ways])
    _refuse_twice("--models", asked.models or ())
    _refuse_twice("--labels", asked.labels or ())
    shares = [(word, _share(word)) for word in asked.labels] if asked.labels is not None else [(None, {})]
    models = asked.models if asked.models is not None else [None]
    arms = []
    for (share, few), model, (way, own) in product(shares, models, ways):
        given = {} if model is None else {"model": model}
        if clash := sorted(set(own) & {*given, *few}):
            raise UserError(f"--arms: {way!r} sets {clash[0]}, which the comparison varies too: give one of the two.")
        arms.append(Arm(way, model, share, {**own, **given, **few}))
    if not arms:
        raise UserError("there is nothing to compare: give --methods, --models and --labels at least one entry each.")
    return tuple(arms)


def short_names(arms: Sequence[Arm]) -> list[str]:
    """Return unique names of the arms, without the parts that all of them share."""
    same_model = len({arm.model for arm in arms}) == 1
    same_share = len({arm.share for arm in arms}) == 1
    return [Arm(arm.way, None if same_model else arm.model, None if same_share else arm.share, {}).name for arm in arms]


def settings_of(shared: Mapping[str, Any], arm: Arm) -> dict[str, Any]:
    """Return all settings of an arm, without those of methods and losses that it does not use."""
    values = {**shared, **arm.settings}
    words = {name: values[name] for name in ("method", "add") if name in values}
    idle = unused_by(TrainSettings(**words)) - set(arm.settings)
    return {name: value for name, value in values.items() if name not in idle}


def baseline_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """Return the baseline of an arm: the first way on its model, or the first model; None for the first arm itself.

    Only arms with the same share of the images are compared. An arm that names its baseline gets that one, and the
    baseline that others name has none itself.
    """
    same_share = [other for other in arms if other.share == arm.share]
    if any(other.against for other in same_share):
        return next((other for other in same_share if other.way == arm.against), None)
    same_model = [other for other in same_share if _network(other) == _network(arm)]
    first = same_model[0] if same_model[0].way != arm.way else same_share[0]
    return None if first == arm else first


def _network(arm: Arm) -> tuple[Any, ...]:
    """Return what identifies the model of an arm, given with --models or in the arm's own flags."""
    return (arm.model, arm.settings.get("model"), tuple(arm.settings.get("model_args") or ()))


def _method(word: str) -> dict[str, Any]:
    method, *terms = word.split("+")
    return {"method": method, **({"add": terms} if terms else {})}


def _share(word: str) -> dict[str, Any]:
    found = _SHARE.fullmatch(word.strip())
    if found is None or not 0 < float(found[1]) <= 100:
        raise UserError(
            f"--labels: expected shares of the training images such as 10%, got {word!r}; label maps belong to an arm: "
            "--arms 'maps: --method token-labeling --labels FOLDER'."
        )
    return {} if float(found[1]) == 100 else {"fraction": float(found[1]) / 100}


def _refuse_twice(flag: str, words: Sequence[str]) -> None:
    for number, word in enumerate(words):
        if word in words[:number]:
            raise UserError(f"{flag}: {word!r} is given twice: leave one out.")
