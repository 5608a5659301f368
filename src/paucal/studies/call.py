"""A call of a study: the runs to make, their images, the folder and the workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paucal.runner.console import Console
from paucal.studies.images import Places
from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.studies.settings import StudySettings
from paucal.studies.study import Study
from paucal.verbs.compare.settings import GridSettings


@dataclass(frozen=True)
class Call:
    """The arguments of a study's call.

    Attributes:
        study: Study to run.
        runs: Runs to make.
        small: Smaller scale; None for the full one.
        asked: Settings with seeds, starts and workers.
        places: Locations of the images.
        folder: Folder of the study.
        command: Command to store with the grids.
        console: Console for messages and progress.
    """

    study: Study
    runs: Sequence[Planned]
    small: Scale | None
    asked: StudySettings
    places: Places
    folder: Path
    command: str
    console: Console

    @property
    def seeds(self) -> list[int]:
        """The seeds of every run."""
        return list(self.asked.seeds or (self.study.seeds if self.small is None else self.small.seeds))

    def by_images(self) -> Iterator[tuple[str, list[Planned]]]:
        """Yield the name of each data set that is trained on, with its runs."""
        for data in dict.fromkeys(run.data for run in self.runs):
            yield data, [run for run in self.runs if run.data == data]

    def workers(self, output: Path, seeds: Sequence[int] | None = None) -> GridSettings:
        """Return the settings of a grid: its workers, its folder and its seeds."""
        asked, own = self.asked, self.seeds if seeds is None else list(seeds)
        who = {"jobs": asked.jobs, "on": asked.on, "slurm": asked.slurm, "retry": asked.retry}
        return GridSettings(seeds=own, output=str(output), **who)

    def with_runs(self, runs: Sequence[Planned]) -> "Call":
        """Return the call for other runs."""
        return replace(self, runs=runs)
