"""A call of a study: which runs are wanted, of which images, where they lie and who computes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paucal.studies.plan import Planned
from paucal.studies.scale import Scale
from paucal.studies.study import Study
from paucal.verbs.comparing.settings import GridSettings
from paucal.verbs.run.voice import Voice
from paucal.verbs.studying.images import Places
from paucal.verbs.studying.settings import StudySettings


@dataclass(frozen=True)
class Call:
    """What a study is called with.

    Attributes:
        study: that is run.
        runs: of it that are wanted.
        small: the scale; None for the full one.
        asked: seeds, starts and who computes.
        places: of the images.
        folder: of the study.
        command: that asks for it.
        voice: shows what takes long.
    """

    study: Study
    runs: Sequence[Planned]
    small: Scale | None
    asked: StudySettings
    places: Places
    folder: Path
    command: str
    voice: Voice

    @property
    def seeds(self) -> list[int]:
        """Those of every run."""
        return list(self.asked.seeds or (self.study.seeds if self.small is None else self.small.seeds))

    def by_images(self) -> Iterator[tuple[str, list[Planned]]]:
        """Yield each set of images that is trained on, by its name, with its runs."""
        for data in dict.fromkeys(run.data for run in self.runs):
            yield data, [run for run in self.runs if run.data == data]

    def workers(self, output: Path, seeds: Sequence[int] | None = None) -> GridSettings:
        """Return who computes a grid, where it lies, and its seeds."""
        asked, own = self.asked, self.seeds if seeds is None else list(seeds)
        who = {"jobs": asked.jobs, "on": asked.on, "slurm": asked.slurm, "retry": asked.retry}
        return GridSettings(seeds=own, output=str(output), **who)

    def with_runs(self, runs: Sequence[Planned]) -> "Call":
        """Return the call for other runs."""
        return replace(self, runs=runs)
