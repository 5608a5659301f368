"""What `paucal pretrain` says about its runs."""

from collections.abc import Mapping
from dataclasses import replace

from paucal.data.dataset import ViewDataset
from paucal.data.loader import TrainLoader
from paucal.data.views.crop_sheet import crop_sheet
from paucal.data.views.normalisation import Normalisation
from paucal.methods.pretraining import check_used, method_of, with_recipe
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.runner.console import Console
from paucal.runner.images import pin_data, step_loader
from paucal.runner.job import Bars
from paucal.runner.processes import is_first
from paucal.runner.starts import pin_start, plain_init
from paucal.runs import RunFolder, write_atomically
from paucal.settings.groups import DataSettings
from paucal.settings.options import check_ranges
from paucal.tasks.pretraining.assembly import PretrainingSetup, assemble, optimization
from paucal.tasks.pretraining.conclusion import PretrainResult, conclude
from paucal.tasks.pretraining.crops import views
from paucal.tasks.pretraining.stage_watch import StageWatch
from paucal.tasks.pretraining.stages import add_parameters, lacks_parameters
from paucal.training import Optimization, Outcome


class PretrainingJob:
    """Pre-training, with any of its methods; a `Job`."""

    verb = "pretrain"
    kind = PretrainSettings
    reads: tuple[str, ...] = ("data", "data_root", "monitor", "init")

    def check(self, settings: PretrainSettings, given: Mapping[str, str]) -> tuple[PretrainSettings, dict[str, str]]:
        """Fill in the recipe and refuse settings that contradict each other."""
        method_of(settings)
        settings, origin = with_recipe(plain_init(settings), given)
        check_used(settings, origin)
        check_ranges(settings)
        return settings, origin

    def pin(self, settings: PretrainSettings) -> PretrainSettings:
        """Return settings with absolute paths."""
        settings = pin_start(pin_data(settings))
        if settings.monitor is None:
            return settings
        return replace(settings, monitor=pin_data(DataSettings(settings.monitor, settings.data_root)).data)

    def assemble(
        self, settings: PretrainSettings, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> PretrainingSetup:
        """Open the images, choose the open settings and build the objective of the run's stage."""
        setup = assemble(settings, given, bars, run)
        # The other processes receive the path of the run only afterwards.
        if run is not None and is_first() and lacks_parameters(run, setup.objective):
            add_parameters(run, setup.objective)
        return setup

    def announce(self, setup: PretrainingSetup, console: Console) -> None:
        """Print the data, the model, and the settings with their reasons."""
        images, split = setup.data.images, setup.data.split
        console.say(f"images: {images.name}, {len(setup.data.part('train'))} to learn from ({split.description})")
        console.say(f"model: {setup.describe()}")
        console.show_settings(setup.settings, setup.origin, setup.remarks)

    def needs_planning(self, setup: PretrainingSetup) -> bool:
        """Return False: the length of the run is given."""
        return False

    def plan(self, run: RunFolder, setup: PretrainingSetup, console: Console) -> bool:
        """Do nothing: the length of the run is given."""
        return True

    def write_beginning(self, run: RunFolder, setup: PretrainingSetup) -> None:
        """Draw the crops of a few images."""
        alone = replace(setup, settings=replace(setup.settings, workers=0))
        batch = next(iter(self.loader(alone, 0)))
        picture = crop_sheet(batch, _statistics(setup))  # type: ignore[arg-type]
        write_atomically(run.plots / "train_batch.png", lambda file: picture.save(file, "PNG"))

    def loader(self, setup: PretrainingSetup, start: int) -> TrainLoader:
        """Return the training loader of this process, starting at a forward pass."""
        settings, data = setup.settings, setup.data
        transforms = views(settings, _statistics(setup))
        dataset = ViewDataset(data.images, transforms, settings.seed, labels=False)
        return step_loader(dataset, data, settings, setup.plan, start)

    def optimization(self, setup: PretrainingSetup) -> Optimization:
        """Return the optimizer and its schedule."""
        return optimization(setup.settings, setup.plan)

    def watcher(self, run: RunFolder, setup: PretrainingSetup, console: Console) -> StageWatch:
        """Return the watcher for collapse and for the next stage."""
        return StageWatch(run, setup, console)

    def conclude(
        self, run: RunFolder, setup: PretrainingSetup, outcome: Outcome, watcher: StageWatch, console: Console
    ) -> PretrainResult:
        """Draw the curves and write the results."""
        return conclude(run, setup, outcome, watcher, console)


def _statistics(setup: PretrainingSetup) -> Normalisation:
    return Normalisation(setup.card.preprocessing.mean, setup.card.preprocessing.std)
