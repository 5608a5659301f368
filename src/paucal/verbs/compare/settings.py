"""The settings of `paucal compare` itself; those of its runs are the settings of `paucal train`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option

_GRID, _WORK = "what is compared", "who computes"
# Settings of `paucal train` that a comparison gives to its runs itself.
TAKEN = ("data", "method", "model", "add", "seed", "fraction", "few_labels", "labels", "output", "overwrite")
# Settings of runs that one process does not make alone, or that would make them others than they say.
REFUSED = ("fold", "folds", "time_limit", "devices", "nodes", "strategy", "sync_bn")


@dataclass(frozen=True)
class GridSettings:
    """What is compared with what, and who computes it."""

    methods: list[str] | None = option(
        "methods, each with the losses beside it: supervised drloc token-labeling+drloc; the first is what the others "
        "are compared with (default: supervised drloc)",
        group=_GRID,
    )
    models: list[str] | None = option("backbones; without any one is chosen from the data", group=_GRID)
    arms: list[str] | None = option(
        "further ways to train, each as 'NAME: FLAGS of paucal train', such as 'light: --method drloc --drloc-weight "
        "0.1'; alone, or beside --methods",
        group=_GRID,
    )
    seeds: list[int] | None = option(
        "every way is trained once with each (default: 0 1 2)", group=_GRID, low=0, high=2**62
    )
    labels: list[str] | None = option("shares of the training images, such as 1% 10% 100%", group=_GRID)
    lrs: list[float] | None = option(
        "learning rates of which validation chooses one for every way, with the first seed", group=_GRID, above=0
    )
    output: str | None = option("folder of the comparison; by default the next runs/compare-N", group=_WORK)
    jobs: int = option("workers; 0 to show what is there", 1, group=_WORK, low=0, high=4096)
    on: Literal["here", "slurm", "ray"] = option("where the workers run", "here", group=_WORK)
    slurm: list[str] | None = option(
        "what each worker asks of SLURM, as NAME=VALUE: slurm_partition=gpu gpus_per_node=1 timeout_min=600",
        group=_WORK,
    )
    retry: bool = option("try failed runs again", False, group=_WORK)
