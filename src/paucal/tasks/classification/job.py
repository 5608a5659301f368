"""`paucal train`: the steps of a run that are specific to classifiers."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from PIL import Image

from paucal.data.loader import TrainLoader
from paucal.methods.training import check_used, paths_of_methods, terms_of, with_recipe
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import Console
from paucal.runner.images import with_absolute_data_paths
from paucal.runner.job import Bars, EpochListener, Job
from paucal.runner.starts import with_absolute_init_path, without_none_init
from paucal.runner.time_budget import choose_time_or_epochs
from paucal.runs import RunFolder
from paucal.settings.options import check_ranges
from paucal.settings.shared import DataSettings
from paucal.tasks.classification.assembly import TrainingSetup, assemble
from paucal.tasks.classification.auto_tune.auto_tune import auto_tune
from paucal.tasks.classification.conclusion import Result, conclude
from paucal.tasks.classification.finishing import make_validation
from paucal.tasks.classification.frozen_views import compute_view_activations
from paucal.tasks.classification.images import write_findings
from paucal.tasks.classification.loaders import draw_eval_images, draw_training_images, train_loader
from paucal.tasks.classification.optimization import make_optimization
from paucal.training import Optimization, Outcome, Validation
from paucal.training.fit import advise_on_memory_errors
from paucal.types import UserError
from paucal.writing import write_atomically


class TrainingJob(Job[TrainSettings, TrainingSetup, Result]):
    """Training of a classifier with any method of `paucal train`."""

    verb = "train"
    settings_type = TrainSettings
    reads = ("data", "data_root", "init", "classes", "unlabelled", *sorted(paths_of_methods()))

    def check(self, settings: TrainSettings, origins: Mapping[str, str]) -> tuple[TrainSettings, dict[str, str]]:
        """Fill in the values of the recipe, and refuse settings that contradict each other."""
        settings = without_none_init(settings)
        if settings.target is not None:
            raise UserError(
                "--target is not supported for comparisons and folds: run 'paucal train' once per --seed or --fold."
            )
        if settings.ordinal:
            raise UserError(
                "--ordinal says that the values of --target are grades: give --target, or remove --ordinal."
            )
        if settings.folds is not None:
            raise UserError(
                "--folds trains several models: in Python, call paucal.cross_validate, or train on a single fold with "
                "--fold 1/5."
            )
        terms_of(settings)  # refuses an unknown method or loss before the recipe is applied
        settings, origins = with_recipe(settings, origins)
        check_used(settings, origins)
        check_ranges(settings)
        return choose_time_or_epochs(settings, origins), origins

    def with_absolute_paths(self, settings: TrainSettings) -> TrainSettings:
        """Return settings with absolute paths."""
        if settings.unlabelled is not None:
            unlabelled_settings = DataSettings(data=settings.unlabelled, data_root=settings.data_root)
            settings = replace(settings, unlabelled=with_absolute_data_paths(unlabelled_settings).data)
        return with_absolute_init_path(with_absolute_data_paths(settings, {*paths_of_methods(), "split"}))

    def assemble(
        self, settings: TrainSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> TrainingSetup:
        """Open the data, choose the settings that were not given and build the objective."""
        return assemble(settings, origins, bars, run)

    def describe_model(self, setup: TrainingSetup) -> str:
        """Return one line that describes the model and the method."""
        return f"{setup.describe()}; method: {setup.settings.method}"

    def needs_preliminary_work(self, setup: TrainingSetup) -> bool:
        """Return whether trial steps must run first, from which auto-tuning chooses the number of epochs."""
        return setup.tune_record is not None and not setup.tune_record.plan

    def run_preliminary_work(self, run: RunFolder, setup: TrainingSetup, console: Console) -> bool:
        """Auto-tune the run.

        If the run has pretrained weights, fit a probe and run short trials. Then choose the number of epochs. All
        results are stored in the run folder. Returns False if a signal stopped a trial.
        """
        with advise_on_memory_errors(setup.plan):
            return auto_tune(run, setup, console)

    def write_beginning(self, run: RunFolder, setup: TrainingSetup) -> None:
        """Write the files of a new run, with figures of images as the network sees them in training and evaluation."""
        if setup.tune_record is not None:
            setup.tune_record.write(run)
        write_findings(run, setup.findings, setup.data.images)
        super().write_beginning(run, setup)
        figure = draw_eval_images(setup.data, setup.card, setup.settings)
        write_atomically(run.plots / "eval_batch.png", lambda file: figure.save(file, "PNG"))

    def draw_batch(self, setup: TrainingSetup) -> Image.Image:
        """Draw training images as the network will see them."""
        return draw_training_images(setup.data, setup.card, setup.settings, setup.plan)

    @contextmanager
    def prepared(self, run: RunFolder, setup: TrainingSetup, console: Console) -> Iterator[TrainingSetup]:
        """With `--frozen-views`, compute the activations that training reads instead of images."""
        if not setup.settings.frozen_views:
            yield setup
            return
        with ExitStack() as stack:
            with console.progress("activations of the frozen stages") as advance:
                views = stack.enter_context(
                    compute_view_activations(
                        run.path,
                        setup.data,
                        images=setup.data.split_indices("train"),
                        preprocess=setup.card.preprocessing,
                        settings=setup.settings,
                        objective=setup.objective,
                        advance=advance,
                    )
                )
            stack.enter_context(views.feed_to(setup.objective))
            yield replace(setup, frozen_views=views)

    def loader(self, setup: TrainingSetup, first_pass: int) -> TrainLoader:
        """Return the training loader of this process, starting at forward pass `first_pass`."""
        if setup.frozen_views is not None:
            return setup.frozen_views.loader(setup.data, setup.settings, setup.plan, first_pass)
        request, preprocess = setup.objective.data_request, setup.card.preprocessing
        return train_loader(setup.data, preprocess, setup.settings, setup.plan, request, first_pass)

    def optimization(self, setup: TrainingSetup) -> Optimization:
        """Return the settings of AdamW and of the learning-rate schedule."""
        return make_optimization(setup.settings, setup.plan)

    def validation(self, setup: TrainingSetup) -> Validation | None:
        """Return the `Validation` that scores the validation images.

        None if the run has no validation images; the last epoch is then kept.
        """
        return make_validation(setup) if len(setup.data.split_indices("val")) else None

    def conclude(
        self, run: RunFolder, setup: TrainingSetup, outcome: Outcome, listener: EpochListener, console: Console
    ) -> Result:
        """Evaluate the best model on the test images and write the results."""
        return conclude(run, setup, outcome, console)
