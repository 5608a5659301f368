"""What `paucal train` says about its runs."""

from collections.abc import Mapping
from dataclasses import replace

from paucal.data.loader import TrainLoader
from paucal.methods.training import check_used, paths_of_methods, terms_of, with_recipe
from paucal.methods.training_settings import TrainSettings
from paucal.runs import RunFolder, write_atomically
from paucal.settings.options import check_ranges
from paucal.training import Optimization, Outcome, Watch
from paucal.training.memory import memory_advice
from paucal.types import UserError
from paucal.verbs.checking.quick import write_findings
from paucal.verbs.run.console import Console
from paucal.verbs.run.images import pin_data
from paucal.verbs.run.job import Bars, Watcher
from paucal.verbs.run.start_weights import pin_start, plain_init
from paucal.verbs.run.trainer_inputs import seconds_of
from paucal.verbs.training.assembly import AssembledTraining, assemble
from paucal.verbs.training.auto_tune.auto_tune import auto_tune
from paucal.verbs.training.conclusion import Result, conclude
from paucal.verbs.training.finishing import watch_of
from paucal.verbs.training.loaders import deployed_sheet, train_loader, training_sheet
from paucal.verbs.training.optimizer import optimization

CONFIG = "config"  # the origin of a setting from a file


class TrainingWatcher(Watcher[AssembledTraining]):
    """Scores each epoch on the validation images."""

    def watch(self) -> Watch | None:
        """Return the scores on the validation images; without them the newest state is kept."""
        return watch_of(self.assembled) if len(self.assembled.prepared.part("val")) else None


def one_length(settings: TrainSettings, origin: Mapping[str, str]) -> TrainSettings:
    """Return settings in which either the time or the epochs decide the length of the run.

    Flags take precedence over a config, and a config over a recipe; within a config the epochs win, since they were
    planned from its time.

    Raises:
        UserError: Both were given, or the time is invalid.
    """
    if settings.time is not None:
        seconds_of(settings.time, "--time")
    if settings.time is None or settings.epochs is None:
        return settings
    if origin.get("time") == CONFIG:
        return replace(settings, time=None)
    if origin.get("epochs", "").startswith((CONFIG, "recipe")):
        lengths = ("epochs", "schedule_epochs", "warmup_epochs")
        return replace(settings, **{name: None for name in lengths if origin.get(name) == origin["epochs"]})
    raise UserError(
        f"--time {settings.time} and --epochs {settings.epochs} both set the length of the run: give one of them."
    )


class TrainingJob:
    """Supervised training, with any of its methods; a `Job`."""

    verb = "train"
    kind = TrainSettings
    reads: tuple[str, ...] = ("data", "data_root", "init", "classes", *sorted(paths_of_methods()))

    def check(self, settings: TrainSettings, given: Mapping[str, str]) -> tuple[TrainSettings, dict[str, str]]:
        """Fill in the recipe and refuse settings that contradict each other."""
        settings = plain_init(settings)
        if settings.folds is not None:
            raise UserError("--folds makes several runs: in Python call paucal.cross_validate, or give --fold 1/5.")
        terms_of(settings)  # checks the names before the recipe changes them
        settings, origin = with_recipe(settings, given)
        check_used(settings, origin)
        check_ranges(settings)
        return one_length(settings, origin), origin

    def pin(self, settings: TrainSettings) -> TrainSettings:
        """Return settings with absolute paths."""
        return pin_start(pin_data(settings, {*paths_of_methods(), "split"}))

    def assemble(
        self, settings: TrainSettings, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> AssembledTraining:
        """Open the data, choose the open settings and build the objective."""
        return assemble(settings, given, bars, run)

    def announce(self, assembled: AssembledTraining, console: Console) -> None:
        """Print the data, the model, and the settings with their reasons."""
        prepared, classes = assembled.prepared, assembled.card.classes
        counts = prepared.counts()
        console.say(
            f"data: {prepared.images.name}, {len(prepared.images)} images, {len(classes)} classes; "
            f"{counts['train']} to train, {counts['val']} to validate, {counts['test']} to test"
        )
        console.say(f"split: {prepared.split.description}")
        console.say(f"model: {assembled.describe()}; method: {assembled.settings.method}")
        console.show_settings(assembled.settings, assembled.origin, assembled.remarks)

    def needs_planning(self, assembled: AssembledTraining) -> bool:
        """Return whether auto-tuning still has to decide the length of the run."""
        return assembled.tune_record is not None and not assembled.tune_record.plan

    def plan(self, run: RunFolder, assembled: AssembledTraining, console: Console) -> bool:
        """Auto-tune the run; return False if a signal stopped it."""
        with memory_advice(assembled.plan):
            return auto_tune(run, assembled, console)

    def write_beginning(self, run: RunFolder, assembled: AssembledTraining) -> None:
        """Write the first files, and draw images as the network will see them in training and evaluation."""
        if assembled.tune_record is not None:
            assembled.tune_record.write(run)
        write_findings(run, assembled.findings, assembled.prepared.images)
        sheet = training_sheet(assembled.prepared, assembled.card, assembled.settings, assembled.plan)
        write_atomically(run.plots / "train_batch.png", lambda file: sheet.save(file, "PNG"))
        plain = deployed_sheet(assembled.prepared, assembled.card, assembled.settings)
        write_atomically(run.plots / "eval_batch.png", lambda file: plain.save(file, "PNG"))

    def loader(self, assembled: AssembledTraining, start: int) -> TrainLoader:
        """Return the training loader of this process, starting at a forward pass."""
        request, preprocess = assembled.objective.data_request, assembled.card.preprocessing
        return train_loader(assembled.prepared, preprocess, assembled.settings, assembled.plan, request, start)

    def optimization(self, assembled: AssembledTraining) -> Optimization:
        """Return AdamW and its schedule."""
        return optimization(assembled.settings, assembled.plan)

    def watcher(self, run: RunFolder, assembled: AssembledTraining, console: Console) -> TrainingWatcher:
        """Return the watcher that scores each epoch."""
        return TrainingWatcher(assembled, console)

    def conclude(
        self, run: RunFolder, assembled: AssembledTraining, outcome: Outcome, watcher: TrainingWatcher, console: Console
    ) -> Result:
        """Evaluate the best model on the test images and write the results."""
        return conclude(run, assembled, outcome, console)
