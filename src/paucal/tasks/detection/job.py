"""What `paucal detect` says about its runs."""

from collections.abc import Mapping

from paucal.data.loader import TrainLoader
from paucal.recipes.detection import LENGTH, RECIPES
from paucal.recipes.recipe import fill_in, require_start
from paucal.runner.console import Console
from paucal.runner.images import pin_data
from paucal.runner.job import Bars, Watcher
from paucal.runner.starts import pin_start, plain_init
from paucal.runs import RunFolder, write_atomically
from paucal.settings.options import check_ranges
from paucal.tasks.detection.assembly import DetectionSetup, assemble, check
from paucal.tasks.detection.conclusion import DetectResult, conclude
from paucal.tasks.detection.loaders import MISSED, SCORE, train_loader, validation
from paucal.tasks.detection.pictures import batch_sheet
from paucal.tasks.detection.settings import DetectSettings
from paucal.tasks.detection.timing import find_length
from paucal.training import CosineWarmup, Optimization, Outcome, Watch
from paucal.training.failures import memory_advice
from paucal.training.schedules import WarmupThenSteps

START = 1e-3  # of the peak, at the first step of the published warm-up


class DetectionWatcher(Watcher[DetectionSetup]):
    """Scores the detector on the validation images at intervals."""

    def watch(self) -> Watch | None:
        """Return the scores on the validation images; without them the newest state is kept."""
        if not len(self.setup.data.part("val")):
            return None
        return Watch(validation(self.setup), SCORE, MISSED)

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> None:
        """Print losses and scores, with the number of passes over the images."""
        each = self.setup.settings.effective_batch
        passes = row["step"] * each / len(self.setup.data.part("train"))
        losses = [f"{n.removeprefix('train_')} {v:.3f}" for n, v in row.items() if n.startswith("train_")]
        scores = [f"{n.removeprefix('val_')} {v:.3f}" for n, v in row.items() if n.startswith("val_") and n != MISSED]
        parts = [f"{epoch}/{epochs}: step {row['step']:.0f} ({passes:.1f} passes)", f"train: {', '.join(losses)}"]
        parts += [f"val: {', '.join(scores)}"] if scores else []
        self.console.say("  ".join([*parts, f"{row['seconds']:.0f} s"]))


class DetectionJob:
    """Training a detector; a `Job`."""

    verb = "detect"
    kind = DetectSettings
    reads: tuple[str, ...] = ("data", "init")

    def check(self, settings: DetectSettings, given: Mapping[str, str]) -> tuple[DetectSettings, dict[str, str]]:
        """Fill in a recipe and refuse what makes no sense."""
        settings = plain_init(settings)
        timed = settings.time is not None or settings.steps is not None
        settings, origin = fill_in(settings, given, RECIPES, settings.recipe, LENGTH if timed else ())
        check(settings)
        require_start(RECIPES, settings.recipe, settings.init)
        check_ranges(settings)
        return settings, origin

    def pin(self, settings: DetectSettings) -> DetectSettings:
        """Return settings with full paths."""
        return pin_start(pin_data(settings))

    def assemble(
        self, settings: DetectSettings, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> DetectionSetup:
        """Open the images, choose what was left open, build the detector."""
        return assemble(settings, given, bars, run)

    def announce(self, setup: DetectionSetup, console: Console) -> None:
        """Say what will be trained, on what, and why the settings are what they are."""
        boxed, counts = setup.images, setup.data.counts()
        boxes = boxed.count(range(len(boxed.images)))
        console.say(
            f"data: {boxed.images.name}, {len(boxed.images)} images, {boxes} boxes of {len(boxed.classes)} classes; "
            f"{counts['train']} images to train, {counts['val']} to validate, {counts['test']} to test"
        )
        console.say(f"split: {setup.data.split.description}")
        console.say(f"model: {setup.describe()}")
        console.show_settings(setup.settings, setup.origin, setup.remarks)

    def needs_planning(self, setup: DetectionSetup) -> bool:
        """Return whether the run has a time and no length yet."""
        return setup.settings.time is not None and setup.settings.steps is None

    def plan(self, run: RunFolder, setup: DetectionSetup, console: Console) -> bool:
        """Measure a few steps and plan the length."""
        console.say("timing a few steps on this machine")
        with memory_advice(setup.plan):
            find_length(run, setup, console)
        return True

    def write_beginning(self, run: RunFolder, setup: DetectionSetup) -> None:
        """Draw images and boxes as the network will see them."""
        batch = next(iter(train_loader(setup, 0)))
        fed = setup.card.preprocessing
        sheet = batch_sheet(batch, setup.images.classes, fed.mean, fed.std)
        write_atomically(run.plots / "train_batch.png", lambda file: sheet.save(file, "PNG"))

    def loader(self, setup: DetectionSetup, start: int) -> TrainLoader:
        """Return the loader of this process, from a forward pass on."""
        return train_loader(setup, start)

    def optimization(self, setup: DetectionSetup) -> Optimization:
        """Return AdamW and its schedule."""
        settings, plan = setup.settings, setup.plan
        per_pass = max(1, len(setup.data.part("train")) // settings.effective_batch)
        warmup = min(round((settings.warmup_epochs or 0) * per_pass), plan.total_steps // 2)
        return Optimization(
            _schedule(settings, plan.total_steps, warmup, per_pass),
            settings.weight_decay,
            clip=settings.clip or None,
            average_decay=settings.average or None,
        )

    def watcher(self, run: RunFolder, setup: DetectionSetup, console: Console) -> DetectionWatcher:
        """Return who scores the detector."""
        return DetectionWatcher(setup, console)

    def conclude(
        self,
        run: RunFolder,
        setup: DetectionSetup,
        outcome: Outcome,
        watcher: DetectionWatcher,
        console: Console,
    ) -> DetectResult:
        """Judge the best detector on the test images and write everything down."""
        return conclude(run, setup, outcome, console)


def _schedule(settings: DetectSettings, steps: int, warmup: int, per_pass: int) -> CosineWarmup | WarmupThenSteps:
    """Return a half cosine, or a rate that falls after so many passes."""
    peak = settings.lr or 0.0
    if not settings.milestones:
        return CosineWarmup(peak, steps, warmup, floor=settings.min_lr or 0.0)
    falls = tuple(passes * per_pass for passes in settings.milestones)
    return WarmupThenSteps(peak, falls, warmup, START * peak)
