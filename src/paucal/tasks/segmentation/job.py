"""What `paucal segment` says about its runs."""

from collections.abc import Mapping
from dataclasses import replace

from paucal.data.loader import TrainLoader
from paucal.recipes.recipe import fill_in, require_start
from paucal.recipes.segmentation import RECIPES
from paucal.runner.console import Console
from paucal.runner.job import Bars, Watcher
from paucal.runner.starts import pin_start, plain_init
from paucal.runner.time_budget import store_time_plan
from paucal.runs import RunFolder, write_atomically
from paucal.settings.options import check_ranges, flag, setting_fields
from paucal.tasks.segmentation.assembly import SegmentationSetup, assemble, fast_inference, optimization
from paucal.tasks.segmentation.conclusion import SegmentResult, conclude
from paucal.tasks.segmentation.images import PATHS, pin_paths
from paucal.tasks.segmentation.loaders import train_loader
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.tasks.segmentation.sheet import crop_sheet
from paucal.tasks.segmentation.timing import plan_for_time
from paucal.tasks.segmentation.validation import LOSS, SCORE, scores
from paucal.training import Optimization, Outcome, Watch
from paucal.types import UserError

# What all runs can be told, and a folder of masks cannot mean.
MEANINGLESS = ("data_root", "download", "image_column", "channels")
FACTORS = (0.05, 20.0)  # that images are scaled by


class SegmentationWatcher(Watcher[SegmentationSetup]):
    """Scores each epoch on the validation images."""

    def watch(self) -> Watch | None:
        """Return the scores on the validation images; without them the newest state is kept."""
        setup = self.setup
        if not len(setup.data.part("val")):
            return None
        validate = scores(setup.segmented, setup.card.preprocessing, setup.card.classes, fast_inference(setup.settings))
        return Watch(validate, SCORE, LOSS)


class SegmentationJob:
    """Training of a segmentation model; a `Job`."""

    verb = "segment"
    kind = SegmentSettings
    reads: tuple[str, ...] = (*PATHS, "init")

    def check(self, settings: SegmentSettings, given: Mapping[str, str]) -> tuple[SegmentSettings, dict[str, str]]:
        """Fill in a recipe and refuse what makes no sense."""
        settings = plain_init(settings)
        settings, origin = fill_in(settings, given, RECIPES, settings.recipe, ())
        require_start(RECIPES, settings.recipe, settings.init)
        check_ranges(settings)
        _refuse_meaningless(settings)
        check_factors("scale", settings.scale, exact=2)
        check_factors("scales", settings.scales)
        _check_sides(settings.resize_to)
        return _one_length(settings, origin), origin

    def pin(self, settings: SegmentSettings) -> SegmentSettings:
        """Return settings with full paths."""
        return pin_paths(settings if settings.init in (None, "auto") else pin_start(settings))

    def assemble(
        self, settings: SegmentSettings, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> SegmentationSetup:
        """Open images and masks, choose what was left open, build the network, and plan its length."""
        setup = assemble(settings, given, bars, run)
        with bars("trying how long a step takes"):
            return plan_for_time(setup)

    def announce(self, setup: SegmentationSetup, console: Console) -> None:
        """Say what will be trained, on what, and why the settings are what they are."""
        data, classes = setup.data, setup.card.classes
        counts = data.counts()
        console.say(
            f"data: {data.images.name}, {len(data.images)} images with masks, {len(classes)} classes; "
            f"{counts['train']} to train, {counts['val']} to validate, {counts['test']} to test"
        )
        console.say(f"split: {data.split.description}")
        console.say(f"model: {setup.describe()}")
        console.show_settings(setup.settings, setup.origin, setup.remarks)

    def needs_planning(self, setup: SegmentationSetup) -> bool:
        """Return False: a run has its length from the beginning."""
        return False

    def plan(self, run: RunFolder, setup: SegmentationSetup, console: Console) -> bool:
        """Have nothing to find out."""
        return True

    def write_beginning(self, run: RunFolder, setup: SegmentationSetup) -> None:
        """Draw crops as the network will see them, with their masks; keep what the length was planned from."""
        if setup.plan.time is not None:
            store_time_plan(run, setup.plan.time)
        alone = replace(setup, settings=replace(setup.settings, workers=0))
        picture = crop_sheet(next(iter(self.loader(alone, 0))), alone.seg_card)  # type: ignore[arg-type]
        write_atomically(run.plots / "train_batch.png", lambda file: picture.save(file, "PNG"))

    def loader(self, setup: SegmentationSetup, start: int) -> TrainLoader:
        """Return the loader of this process, from a forward pass on."""
        return train_loader(setup, start)

    def optimization(self, setup: SegmentationSetup) -> Optimization:
        """Return AdamW and its schedule."""
        return optimization(setup)

    def watcher(self, run: RunFolder, setup: SegmentationSetup, console: Console) -> SegmentationWatcher:
        """Return who scores the epochs."""
        return SegmentationWatcher(setup, console)

    def conclude(
        self,
        run: RunFolder,
        setup: SegmentationSetup,
        outcome: Outcome,
        watcher: SegmentationWatcher,
        console: Console,
    ) -> SegmentResult:
        """Judge the best model on the test images and write everything down."""
        return conclude(run, setup, outcome, console)


def _refuse_meaningless(settings: SegmentSettings) -> None:
    declared = setting_fields(settings)
    for name in MEANINGLESS:
        if getattr(settings, name) != declared[name].default:
            raise UserError(f"{flag(name)} says nothing about a folder of RGB images and masks: leave it out.")
    if settings.epochs is not None and settings.freeze_epochs >= settings.epochs:
        raise UserError(
            f"--freeze-epochs {settings.freeze_epochs} leaves no epoch of {settings.epochs} to the backbone: give "
            "fewer, more --epochs, or --freeze backbone."
        )


def _check_sides(sides: list[int] | None) -> None:
    if sides is not None and len(sides) != 2:
        raise UserError(
            f"--resize-to is {' '.join(map(str, sides))}, expected a shorter and a longer side, such as 512 2048."
        )


def check_factors(name: str, values: list[float] | None, exact: int | None = None) -> None:
    """Raise a UserError for factors on the sides of images that are out of range, too many, or out of order."""
    if values is None:
        return
    low, high = FACTORS
    sound = all(low <= value <= high for value in values) and len(values) == (exact or len(values)) and len(values) < 20
    if not sound or (exact and values[0] > values[-1]):
        expected = "the smallest and the largest factor" if exact else "up to 19 factors"
        raise UserError(
            f"{flag(name)} is {' '.join(f'{value:g}' for value in values)}, expected {expected}, each from {low:g} to "
            f"{high:g}."
        )


def _one_length(settings: SegmentSettings, origin: Mapping[str, str]) -> SegmentSettings:
    """Return settings of which one alone says how long a run is.

    Raises:
        UserError: both were given.
    """
    if settings.time is None or settings.epochs is None:
        return settings
    if origin.get("time") == "config":
        return replace(settings, time=None)
    if origin.get("epochs", "").startswith(("config", "recipe")):
        return replace(settings, epochs=None, warmup_epochs=None)
    raise UserError(
        f"--time {settings.time} and --epochs {settings.epochs} both say how long the run is: give one of them."
    )
