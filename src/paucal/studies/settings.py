"""The settings of `paucal study`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option


@dataclass(frozen=True)
class StudyRunSettings:
    """The runs of a study, and their images."""

    help_group = "runs"
    scale: Literal["tiny", "small", "full"] = option(
        "tiny: stand-ins on few small images, minutes on one CPU core; small: longer, for a GPU or a night; full: as "
        "published",
        "tiny",
    )
    data: list[str] = option(
        "images: with --scale tiny or small, DATA that replaces all published sets (by default the built-in digits, "
        "or cifar10); with --scale full, NAME=DATA for each set that paucal cannot open by name",
        [],
    )
    rows: list[str] | None = option("rows to run, by their names in 'paucal study show NAME'")
    columns: list[str] | None = option("columns to run")
    seeds: list[int] | None = option(
        "seeds of every row; by default those of the scale, or of the paper", low=0, high=2**62
    )
    recipe: str | None = option("full: recipe that replaces the recipe of the study, such as drloc-scratch-reference")
    init: list[str] = option(
        "full: initial weights, if a study needs them; NAME=RUN for each of the names in 'paucal study show NAME'",
        [],
    )
    labels: str | None = option("full: folder of label maps, if a study needs label maps")
    data_root: str | None = option("folder of the published sets, as in 'paucal train'")
    download: bool = option("download a missing published set", False)


@dataclass(frozen=True)
class StudyWorkerSettings:
    """The workers that compute the runs, and the folder of the study."""

    help_group = "workers"
    device: str | None = option("cpu, cuda or mps; by default as in 'paucal train'")
    workers: int | None = option("image-loading processes of each worker", low=0, high=64)
    output: str | None = option("folder of the study; by default runs/study-NAME-SCALE")
    jobs: int = option("number of workers; 0 to only show the stored results", 1, low=0, high=4096)
    on: Literal["here", "slurm", "ray"] = option("where the workers run", "here")
    slurm: list[str] | None = option("resources of each worker on SLURM, as in 'paucal compare'")
    retry: bool = option("try failed runs again", False)


@dataclass(frozen=True)
class StudySettings(StudyWorkerSettings, StudyRunSettings):
    """Every setting of `paucal study NAME`: which runs, on which images, and by which workers."""
