"""`paucal train`: the steps of a run that are specific to classifiers."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from PIL import Image

from paucal.data.images import evenly_spaced
from paucal.data.loader import TrainLoader
from paucal.data.views.sheets import MAX_IMAGES, draw_sheet
from paucal.methods.training import check_used, paths_of_methods, terms_of, with_recipe
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import Console
from paucal.runner.images import eval_loader, with_absolute_data_paths
from paucal.runner.initial_weights import with_absolute_init_path, without_none_init
from paucal.runner.job import Bars, EpochListener, Job
from paucal.runner.time_budget import choose_time_or_epochs
from paucal.runs import RunFolder
from paucal.settings.options import check_ranges
from paucal.settings.shared import DataSettings
from paucal.tasks.classification.assembly import TrainingSetup, assemble
from paucal.tasks.classification.auto_tune.auto_tune import auto_tune
from paucal.tasks.classification.conclusion import Result, conclude
from paucal.tasks.classification.frozen_views import compute_view_activations
from paucal.tasks.classification.images import FINDINGS_FILE
from paucal.tasks.classification.trainer_inputs import make_optimization, train_loader
from paucal.training import Optimization, Outcome, Validation
from paucal.training.fit import advise_on_memory_errors
from paucal.types import DataRequest, UserError
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
        """Return whether the run must be auto-tuned before it trains."""
        return setup.tune_record is not None and not setup.tune_record.plan_text

    def run_preliminary_work(self, run: RunFolder, setup: TrainingSetup, console: Console) -> bool:
        """Auto-tune the run: fit a probe to pretrained weights, run short trials, and choose the number of epochs."""
        with advise_on_memory_errors(setup.plan):
            auto_tune(run, setup, console)
        return True

    def write_beginning(self, run: RunFolder, setup: TrainingSetup) -> None:
        """Write the files of a new run, with figures of images as the network sees them in training and evaluation."""
        data, preprocess = setup.data, setup.card.preprocessing
        if setup.tune_record is not None:
            setup.tune_record.write(run)
        findings = [finding.to_dict(data.images.keys) for finding in setup.findings]
        run.write_json(FINDINGS_FILE, {"findings": findings})
        super().write_beginning(run, setup)
        indices = data.split_indices("val") if len(data.split_indices("val")) else data.split_indices("train")
        sample = indices[evenly_spaced(len(indices), MAX_IMAGES)]
        batch = next(iter(eval_loader(data, sample, preprocess, replace(setup.settings, workers=0))))
        figure = draw_sheet(batch, preprocess.normalisation, setup.card.classes)
        write_atomically(run.plots / "eval_batch.png", lambda file: figure.save(file, "PNG"))

    def draw_batch(self, setup: TrainingSetup) -> Image.Image:
        """Draw a training batch as the network sees the images: augmented, and mixed if the run mixes images."""
        preprocess, settings, plan = setup.card.preprocessing, replace(setup.settings, workers=0), setup.plan
        batch = next(iter(train_loader(setup.data, preprocess, settings, plan, DataRequest(), 0)))
        if plan.mixing is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(settings.seed)
                batch = plan.mixing.mix(batch, plan.n_classes)
        return draw_sheet(batch, preprocess.normalisation, setup.card.classes)  # type: ignore[arg-type]

    @contextmanager
    def prepared(self, run: RunFolder, setup: TrainingSetup, console: Console) -> Iterator[TrainingSetup]:
        """With `--frozen-views`, compute the activations that training reads instead of images."""
        if not setup.settings.frozen_views:
            yield setup
            return
        images, preprocess = setup.data.split_indices("train"), setup.card.preprocessing
        with ExitStack() as stack:
            with console.progress("activations of the frozen stages") as advance:
                activations = compute_view_activations(
                    run.path, setup.data, images, preprocess, setup.settings, setup.objective, advance
                )
                views = stack.enter_context(activations)
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
        """Return the `Validation` that scores the validation images; if None, the last epoch is kept."""
        return setup.validation()

    def conclude(
        self, run: RunFolder, setup: TrainingSetup, outcome: Outcome, listener: EpochListener, console: Console
    ) -> Result:
        """Evaluate the best model on the test images and write the results."""
        return conclude(run, setup, outcome, console)
