"""The settings of `paucal study`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option

_RUNS, _WORKERS = "runs", "who computes"  # headings of the help text


@dataclass(frozen=True)
class StudySettings:
    """Every setting of `paucal study NAME`: which runs, on which images, and by which workers."""

    scale: Literal["tiny", "small", "full"] = option(
        "tiny: stand-ins on few small images, minutes on one CPU core; small: longer, for a GPU or a night; full: as "
        "published",
        "tiny",
        group=_RUNS,
    )
    data: list[str] = option(
        "images: with --scale tiny or small, DATA that replaces all published sets (by default the built-in digits, "
        "or cifar10); with --scale full, NAME=DATA for each set that paucal cannot open by name",
        [],
        group=_RUNS,
    )
    rows: list[str] | None = option("rows to run, by their names in 'paucal study show NAME'", group=_RUNS)
    columns: list[str] | None = option("columns to run", group=_RUNS)
    seeds: list[int] | None = option(
        "seeds of every row; by default those of the scale, or of the paper", group=_RUNS, low=0, high=2**62
    )
    recipe: str | None = option(
        "full: recipe that replaces the recipe of the study, such as drloc-scratch-reference", group=_RUNS
    )
    init: list[str] = option(
        "full: initial weights, if a study needs them; NAME=RUN for each of the names in 'paucal study show NAME'",
        [],
        group=_RUNS,
    )
    labels: str | None = option("full: folder of label maps, if a study needs label maps", group=_RUNS)
    data_root: str | None = option("folder of the published sets, as in 'paucal train'", group=_RUNS)
    download: bool = option("download a missing published set", False, group=_RUNS)
    device: str | None = option("cpu, cuda or mps; by default as in 'paucal train'", group=_WORKERS)
    workers: int | None = option("image-loading processes of each worker", group=_WORKERS, low=0, high=64)
    output: str | None = option("folder of the study; by default runs/study-NAME-SCALE", group=_WORKERS)
    jobs: int = option("number of workers; 0 to only show the stored results", 1, group=_WORKERS, low=0, high=4096)
    on: Literal["here", "slurm", "ray"] = option("where the workers run", "here", group=_WORKERS)
    slurm: list[str] | None = option("resources of each worker on SLURM, as in 'paucal compare'", group=_WORKERS)
    retry: bool = option("try failed runs again", False, group=_WORKERS)
