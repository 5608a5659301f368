"""The settings of `paucal compare` in addition to those of `paucal train`, and the arms that they define."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from paucal.settings.options import option
from paucal.types import UserError

# Settings of `paucal train` that a comparison sets for each of its runs.
SET_BY_COMPARISON = (
    *("data", "method", "model", "add", "seed", "fraction", "few_labels", "labels"),
    *("output", "overwrite"),
)
# Settings of `paucal train` that need several processes, or that divide a run into several runs or calls.
UNSUPPORTED = ("fold", "folds", "time_limit", "devices", "nodes", "strategy", "sync_bn")


@dataclass(frozen=True)
class ComparedSettings:
    """The arms to compare, and their seeds."""

    help_group = "comparison"
    methods: list[str] | None = option(
        "methods, with additional losses after a plus sign: supervised drloc token-labeling+drloc; the first is the "
        "baseline (default: supervised drloc)"
    )
    models: list[str] | None = option("backbones (default: one backbone, chosen from the data)")
    arms: list[str] | None = option(
        "training configurations, each as 'NAME: FLAGS of paucal train', such as 'light: --method drloc --drloc-weight "
        "0.1'; instead of --methods or in addition to them"
    )
    seeds: list[int] | None = option(
        "seeds; every arm is trained once with each seed (default: 0 1 2)", low=0, high=2**62
    )
    labels: list[str] | None = option("fractions of the training images to train on, such as 1% 10% 100%")
    lrs: list[float] | None = option(
        "learning rates; the best rate for each arm is chosen by validation with the first seed", above=0
    )


@dataclass(frozen=True)
class WorkerSettings:
    """The workers that train the arms, and the folder of the comparison."""

    help_group = "workers"
    output: str | None = option("folder of the comparison (default: the next runs/compare-N)")
    jobs: int = option("number of workers; 0 only shows the stored results", 1, low=0, high=4096)
    on: Literal["here", "slurm", "ray"] = option("where the workers run", "here")
    slurm: list[str] | None = option(
        "resources of each worker on SLURM, as NAME=VALUE: slurm_partition=gpu gpus_per_node=1 timeout_min=600"
    )
    retry: bool = option("repeat failed runs", False)


@dataclass(frozen=True)
class GridSettings(WorkerSettings, ComparedSettings):
    """Settings of a comparison: the arms to compare, and the workers that train them."""


@dataclass(frozen=True)
class Arm:
    """A training configuration to compare."""

    way: str  # entry of --methods, such as "drloc", or name of an entry of --arms
    model: str | None  # entry of --models; None if the model is chosen from the data
    share: str | None  # fraction of the training images: an entry of --labels, such as "10%"; None for all
    settings: Mapping[str, Any] = field(hash=False)  # settings in which the arm differs from the shared settings
    against: str = ""  # `way` of the baseline; "" to choose the baseline as `baseline_of` describes

    @property
    def name(self) -> str:
        """Name that is unique in the comparison."""
        share = None if self.share is None else f"{self.share} of the images"
        return ", ".join(part for part in (self.way, self.model, share) if part is not None)


def make_arms(grid_settings: GridSettings, named: Mapping[str, Mapping[str, Any]]) -> tuple[Arm, ...]:
    """Return an arm for every combination of a method (or an entry of `named`), a model and a fraction of the images.

    Baselines come before the arms that are compared with them. `named` has the settings of each entry of --arms.
    """
    methods = grid_settings.methods if grid_settings.methods is not None or named else ["supervised", "drloc"]
    ways = []
    for word in methods or ():
        method, *terms = word.split("+")
        ways.append((word, {"method": method, **({"add": terms} if terms else {})}))
    ways += [(name, dict(settings)) for name, settings in named.items()]
    models, labels = grid_settings.models, grid_settings.labels
    entries = {"--methods": [name for name, _ in ways], "--models": models, "--labels": labels}
    for flag, words in entries.items():
        for word, count in Counter(words).items():
            if count > 1:
                raise UserError(f"{flag}: {word!r} is given twice: remove one of them.")
    shares: list[tuple[str | None, dict[str, Any]]] = [(None, {})] if labels is None else []
    for word in labels or ():
        percentage = re.fullmatch(r"(\d+(?:\.\d+)?)%", word.strip())
        if percentage is None or not 0 < float(percentage[1]) <= 100:
            raise UserError(
                f"--labels: expected fractions of the training images such as 10%, got {word!r}; label maps need an "
                "arm: --arms 'maps: --method token-labeling --labels FOLDER'."
            )
        shares.append((word, {} if float(percentage[1]) == 100 else {"fraction": float(percentage[1]) / 100}))
    arms = []
    for (share, fraction), model, (way, settings) in product(shares, models if models is not None else [None], ways):
        varied = {**({} if model is None else {"model": model}), **fraction}
        if clash := sorted(set(settings) & set(varied)):
            raise UserError(f"--arms: {way!r} sets {clash[0]}, which the comparison also varies: remove either one.")
        arms.append(Arm(way, model, share, {**settings, **varied}))
    if not arms:
        raise UserError("there is nothing to compare: give --methods, --models and --labels at least one entry each.")
    return tuple(arms)


def baseline_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """Return the baseline of an arm, which has the same fraction of the images; None if the arm has no baseline.

    If any of the arms with this fraction sets `against`, the baseline is the arm whose `way` is `arm.against`.
    Otherwise, it is the first arm with the same network or, if that arm has the same `way`, with any network.
    """
    same_share = [other for other in arms if other.share == arm.share]
    if any(other.against for other in same_share):
        return next((other for other in same_share if other.way == arm.against), None)

    def network(arm: Arm) -> tuple[Any, ...]:
        # The model is set by --models or by the flags of --arms.
        return arm.model, arm.settings.get("model"), tuple(arm.settings.get("model_args") or ())

    same_model = [other for other in same_share if network(other) == network(arm)]
    first = same_model[0] if same_model[0].way != arm.way else same_share[0]
    return None if first == arm else first
