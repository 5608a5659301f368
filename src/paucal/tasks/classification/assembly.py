"""Assembly of a supervised run from its settings and its images."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from paucal.backbones.spec import BackboneSpec
from paucal.data.channels.pixel_format import describe_channels
from paucal.data.checking.findings import Finding
from paucal.data.images import ImageSet
from paucal.data.sources.joining import SEPARATOR
from paucal.data.string_arrays import take_strings
from paucal.data.views.normalisation import Normalisation
from paucal.evaluation.calibration import DEFAULT_THRESHOLD
from paucal.evaluation.seen_images import seen_by_start
from paucal.methods.contract import RunImages
from paucal.methods.fine_tuning import check_tuning
from paucal.methods.training import build_objective, method_of, resolve_training, settle_terms, unused_by
from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.models.features import linear_classifier
from paucal.objectives import Objective
from paucal.rules.backbone import backbone_spec
from paucal.rules.facts import DataAndMachine, StartFacts
from paucal.rules.resolve import origins
from paucal.runner.images import (
    SplitImages,
    decoded,
    find_images,
    first_reading,
    reading_for,
    stored_reading,
    with_label_maps,
)
from paucal.runner.job import Bars, RunSetup
from paucal.runner.memory_check import check_memory, explain_memory_errors
from paucal.runner.run_folder import stored_split
from paucal.runner.starts import Choice, Start, choose_start, find_start, load_start, may_choose_start
from paucal.runner.time_budget import seconds_of
from paucal.runner.trainer_inputs import check_rates
from paucal.runs import RunFolder
from paucal.runs.folder import AUTO
from paucal.runs.weights import read_weights
from paucal.tasks.classification.auto_tune.record import TuneRecord, read_record
from paucal.tasks.classification.balance import balance, suit_labels
from paucal.tasks.classification.frozen_views import FrozenViews, why_not_kept
from paucal.tasks.classification.images import quick_check, split_images, too_few_for_test, warnings
from paucal.tasks.classification.loaders import run_preprocessing, view_transform
from paucal.tasks.classification.optimization import check_plan, fit_batch, training_plan
from paucal.tasks.classification.unlabelled_images import open_unlabelled
from paucal.training import Plan
from paucal.types import UserError
from paucal.wording import counted

HEAD = "probe.safetensors"
NO_PROBE = "no linear probe of the pretrained weights, since these images are streamed: tuned from the first step"
TUNING = "supervised"
# Settings that are given only with weights named by the user or for training from scratch.
OWN_START = ("init_head", "init_network", "attention_init", "model_args")
SEVERAL_PROCESSES = "no linear probe and no trials, which need a single process: tuned from the first step"
SEVERAL_LABELS = (
    "several labels: trained with one sigmoid per class (binary cross-entropy), scored by mean average precision"
)


@dataclass(frozen=True)
class TrainingSetup(RunSetup[TrainSettings]):
    """Everything a supervised run needs, checked, with nothing written yet.

    Attributes:
        tune_record: Record of the auto-tuning; None for a run whose length is given.
        findings: Findings about the images of a new run, most serious first.
        frozen_views: Activations that training reads in place of images; None to read images.
    """

    tune_record: TuneRecord | None = None
    findings: tuple[Finding, ...] = ()
    frozen_views: FrozenViews | None = None


def assemble(
    settings: TrainSettings,
    given: Mapping[str, str],
    bars: Bars,
    run: RunFolder | None = None,
    opened: SplitImages | None = None,
) -> TrainingSetup:
    """Open the data, choose the settings that were not given and build the objective, without writing anything.

    `opened` are the images of the run if they are open already.
    """
    chooses_start = run is None and _may_choose_start(settings, given)
    unresolved = settings, given
    start = Start() if chooses_start else find_start(settings, run)
    data = opened or _open_images(settings, bars, run)
    choice = Choice((), "")
    if chooses_start:
        settings, given, choice = _look_for_start(settings, given, data)
        start = find_start(settings)
    images, facts = data.images, replace(data.facts(), start=_start_facts(start, settings.init))
    fit_memory = settings.batch_size == "auto"
    settings, reasons = resolve_training(settings, facts)
    data, fewer = _decode_at_size(settings, data, bars, run, opened)
    if fewer:  # unreadable images were skipped: choose the settings that depend on their number again
        return assemble(*unresolved, bars, run, split_images(unresolved[0], data.images))
    images = data.images
    tune_record = _open_tune_record(settings, choice, run, whole=images.stream is None)
    objective, spec, notes = _build_objective(settings, len(images.classes), images.reading.channels)
    if run is None and _needs_test_part(unresolved[0], data, tune_record, objective):
        return assemble(*unresolved, bars, run, split_images(unresolved[0], images, keep_test=True))
    suit_labels(settings, data, objective)
    if objective.data_request.label_maps:
        with bars("reading label maps") as advance:
            data = with_label_maps(data, settings.labels, settings.method, advance)
    preprocess = run_preprocessing(settings, data, start.input and start.input(settings.model), run)
    held_out = frozenset(key for part in ("val", "test") for key in take_strings(images.keys, data.part(part)))
    settle_terms(settings, objective, RunImages(images, held_out, Normalisation(preprocess.mean, preprocess.std)))
    balance(settings, data, objective)
    card = ModelCard(spec, images.classes, preprocess)
    if images.multi_hot is not None:
        # Replaced if the end of the run chooses thresholds.
        card = card.with_thresholds([DEFAULT_THRESHOLD] * len(images.classes))
    if fit_memory:
        settings, reasons["batch_size"] = fit_batch(settings, data, objective, card)
        given = {name: origin for name, origin in given.items() if name not in ("batch_size", "accumulate")}
    load_report = load_start(start, settings.model, objective, images.classes, settings.init_head)
    if tune_record is not None and run is not None and not run.last.exists():
        load_head(run, objective, settings.img_size)
    findings = tuple(quick_check(data)) if run is None else ()
    remarks = [
        *([choice.remark] if choice.remark else ()),
        *([SEVERAL_PROCESSES] if choice.candidates and settings.processes > 1 else ()),
        *images.notes,
        *filter(None, [describe_channels(images.reading.channels)]),
        *([SEVERAL_LABELS] if images.multi_hot is not None else ()),
        *(_describe_unlabelled(settings, images, objective) if run is None else ()),
        *([NO_PROBE] if images.stream is not None and choice.candidates else ()),
        *warnings(findings),
        *check_plan(settings, facts.n_train),
        *(load_report.lines() if load_report else ()),
        *seen_by_start(settings.init, images, data.split),
        *check_tuning(settings, objective, images.class_counts(data.part("train")).tolist()),
        *notes,
    ]
    _check_request(objective, settings, card)
    plan, origin = _plan(settings, facts, tune_record), origins(settings, given, reasons)
    parts = (settings, origin, data, plan, objective, card, tuple(remarks), load_report)
    return TrainingSetup(*parts, tune_record, findings)


def _needs_test_part(
    settings: TrainSettings, data: SplitImages, tune_record: TuneRecord | None, objective: Objective
) -> bool:
    """Return whether a test part must be cut: a run without a probe has no cross-validated score."""
    if len(data.part("test")) or not too_few_for_test(settings, data.images):
        return False
    return tune_record is None or not tune_record.candidates or linear_classifier(objective.deployable()) is None


def _plan(settings: TrainSettings, facts: DataAndMachine, tune_record: TuneRecord | None) -> Plan:
    plan = training_plan(settings, facts.n_train, facts.n_classes)
    return replace(plan, total_steps=0) if tune_record is not None and not tune_record.tune else plan


def _open_tune_record(settings: TrainSettings, choice: Choice, run: RunFolder | None, whole: bool) -> TuneRecord | None:
    """Return the stored or a new record of auto-tuning; None for a run without it.

    `whole` says whether the features of all images fit in memory, as a probe needs; they do not for shards.
    """
    if run is not None:
        return read_record(run)
    tune_record = None
    if choice.candidates or settings.time is not None:
        # Auto-tuning needs one process and all images in memory; other runs fine-tune from the first step.
        candidates = choice.candidates if settings.processes == 1 and whole else ()
        budget = 0.0 if settings.time is None else seconds_of(settings.time, "--time")
        tune_record = TuneRecord(candidates, budget)
    _check_new_run(settings, tune_record, whole)
    return tune_record


def _check_new_run(settings: TrainSettings, tune_record: TuneRecord | None, whole: bool) -> None:
    check_rates(settings)
    has_frozen_features = tune_record is not None and bool(tune_record.candidates)
    if settings.epochs == 0 and not whole:
        raise UserError(
            "--epochs 0 keeps the linear probe of pretrained weights, which is fitted to the features of all "
            "images at once, while shards are streamed: give at least 1, or train on a part of them "
            "that is small enough to be decoded once."
        )
    if settings.curve and not has_frozen_features:
        raise UserError(
            "--curve fits heads to the frozen features of pretrained weights, and this run has "
            "none: leave it out, or compare shares of the images with 'paucal compare --labels 25% 50% 100%'."
        )
    if settings.unlabelled is not None and not has_frozen_features:
        raise UserError(
            "--unlabelled fits a head to the frozen features of pretrained weights, and this run has none: leave it "
            "out and let a run that has them answer for these images ('paucal predict RUN "
            f"{shlex.quote(settings.unlabelled)} --to csv --output ANSWERS', then give "
            f"{shlex.quote(f'{settings.data}{SEPARATOR}ANSWERS')} with --val-fraction 0, where {settings.data} has a "
            "'test' folder: predicted labels must not be used for evaluation), or learn from them first with "
            "'paucal pretrain'."
        )
    if settings.epochs == 0 and not has_frozen_features:
        raise UserError(
            "--epochs 0 keeps the linear probe of pretrained weights, and this run starts from random weights: "
            "give at least 1."
        )


def _describe_unlabelled(settings: TrainSettings, images: ImageSet, objective: Objective) -> list[str]:
    """Open the images without labels of a new run, and return a line about them."""
    if settings.unlabelled is None:
        return []
    if images.multi_hot is not None:
        raise UserError("--unlabelled is for images with one label each, and these have several: leave it out.")
    if linear_classifier(objective.deployable()) is None:
        raise UserError(
            f"--unlabelled fits a linear head, and {settings.model} has no linear classifier: leave it out."
        )
    unlabelled = open_unlabelled(settings)
    return [f"{counted(len(unlabelled), 'image')} without labels in {settings.unlabelled}", *unlabelled.notes]


def head_file(sides: Sequence[int]) -> str:
    """Return the file name of the head fitted at an image size other than the probe's."""
    return f"head-{'x'.join(map(str, sides))}.safetensors"


def load_head(run: RunFolder, objective: Objective, sides: Sequence[int] | None) -> None:
    """Load the head fitted at an image size, if the run has one, into the deployed network."""
    path = run.path / head_file(sides or [])
    path = path if path.is_file() else run.path / HEAD
    classifier = linear_classifier(objective.deployable())
    if not path.is_file() or classifier is None:
        return
    try:
        classifier.load_state_dict(read_weights(path))
    except RuntimeError as problem:
        raise UserError(f"{str(path)!r} does not fit the model of its run: train again.") from problem


def _may_choose_start(settings: TrainSettings, given: Mapping[str, str]) -> bool:
    """Return whether the run looks for pretrained weights: neither weights nor a paper's recipe were given."""
    paper = settings.recipe is not None or method_of(settings).label_maps
    return may_choose_start(settings, given, OWN_START) and (settings.init == AUTO or not paper)


def _look_for_start(
    settings: TrainSettings, given: Mapping[str, str], data: SplitImages
) -> tuple[TrainSettings, dict[str, str], Choice]:
    """Choose the pretrained weights and, if no method was given, one that suits them."""
    settings, given, choice = choose_start(settings, given, data.facts().median_side)
    is_open = "method" not in given and not unused_by(replace(settings, method=TUNING)) & set(given)
    if choice.candidates and is_open:
        settings = replace(settings, method=TUNING)
        given["method"] = "auto: starts from pretrained weights, for which the paper's method has shown no gain"
    return settings, given, choice


def chosen_image_size(data: SplitImages) -> list[int]:
    """Return the side, or height and width, in pixels that a run would choose for these images."""
    settings, given = TrainSettings(), {}
    settings, given, _ = _look_for_start(settings, given, data)
    facts = replace(data.facts(), start=_start_facts(find_start(settings), settings.init))
    return list(resolve_training(settings, facts)[0].img_size)


def _start_facts(start: Start, init: str | None) -> StartFacts | None:
    return None if start.facts is None else replace(start.facts, chosen=init == AUTO)


def _open_images(settings: TrainSettings, bars: Bars, run: RunFolder | None) -> SplitImages:
    """Open and split the images, and decode them if the image size is known."""
    with bars("looking through shards") as advance:
        images = find_images(settings, advance=advance)
    if settings.img_size is not None:
        reading = reading_for(settings.img_size, first_reading(settings, images, stored_reading(run)))
        with bars("reading images") as advance:
            images = decoded(images, settings, reading, advance)
    return split_images(settings, images) if run is None else SplitImages(images, stored_split(run, images))


def _decode_at_size(
    settings: TrainSettings, data: SplitImages, bars: Bars, run: RunFolder | None, opened_data: SplitImages | None
) -> tuple[SplitImages, bool]:
    """Return the images decoded at the network's image size, and whether some were skipped.

    Images that are open already may be larger than needed: auto-tuning tries smaller sizes.
    """
    images = data.images
    base_reading = images.reading if images.reading.side else first_reading(settings, images, stored_reading(run))
    reading = reading_for(settings.img_size, base_reading)
    current_side, wanted_side = images.reading.side or 0, reading.side or 0
    if current_side == wanted_side or (opened_data is not None and current_side > wanted_side):
        return data, False
    with bars("reading images") as advance:
        images = decoded(images, settings, reading, advance)
    return replace(data, images=images), len(images) < len(data.images)


def _build_objective(
    settings: TrainSettings, n_classes: int, channels: int
) -> tuple[Objective, BackboneSpec, list[str]]:
    # The initial weights must not depend on earlier random numbers, nor change later ones.
    with torch.random.fork_rng(devices=[]), explain_memory_errors():
        torch.manual_seed(settings.seed)
        spec, notes = backbone_spec(settings, n_classes, channels)
        notes = [*check_memory(settings, spec), *notes]
        return build_objective(settings, spec), spec, notes


def _check_request(objective: Objective, settings: TrainSettings, card: ModelCard) -> None:
    """Refuse settings that do not give an objective the data it needs."""
    request = objective.data_request
    if settings.frozen_views and (reason := why_not_kept(settings, objective)) is not None:
        raise UserError(f"--frozen-views is not supported here: {reason}.")
    if settings.images_per_pass < request.smallest_batch:
        raise UserError(
            f"--batch-size is {settings.images_per_pass}, and --method {settings.method} needs at least "
            f"{request.smallest_batch} images in a forward pass."
        )
    for crops in request.views:
        view_transform(crops, card.preprocessing, settings, request.geometry)
