"""Assemble a classification run: open its images, choose its settings, and build its network and objective."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paucal.backbones.spec import BackboneSpec
from paucal.data.channels.pixel_format import describe_channels
from paucal.data.checking.findings import Finding
from paucal.data.images import ImageSet
from paucal.data.sources.joining import SEPARATOR
from paucal.data.string_arrays import take_strings
from paucal.data.views.normalisation import Normalisation
from paucal.evaluation.calibration import DEFAULT_THRESHOLD
from paucal.evaluation.seen_images import seen_by_initial_weights
from paucal.methods.contract import RunImages
from paucal.methods.fine_tuning import check_tuning
from paucal.methods.training import build_objective, method_of, resolve_training, settle_terms, unused_by
from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.models.features import linear_classifier
from paucal.objectives import Objective
from paucal.rules.facts import DataAndMachine, InitialWeightsInfo
from paucal.rules.resolve import list_origins
from paucal.runner.images import (
    SplitImages,
    decode_images,
    find_images,
    first_reading,
    reading_for,
    stored_reading,
    with_label_maps,
)
from paucal.runner.job import Bars, RunSetup
from paucal.runner.memory_check import checked_backbone, initial_weights
from paucal.runner.run_folder import stored_split
from paucal.runner.starts import WeightsChoice, WeightsSource, choose_start, find_start, load_start, may_choose_start
from paucal.runner.time_budget import parse_duration
from paucal.runner.trainer_inputs import check_rates
from paucal.runs import RunFolder
from paucal.runs.folder import AUTO
from paucal.runs.weights import read_weights
from paucal.tasks.classification.auto_tune.record import TuneRecord, read_record
from paucal.tasks.classification.balance import set_class_weights, set_label_mode
from paucal.tasks.classification.frozen_views import FrozenViews, why_unsupported
from paucal.tasks.classification.images import quick_check, split_images, too_few_for_test
from paucal.tasks.classification.loaders import run_preprocessing, view_transform
from paucal.tasks.classification.optimization import check_plan, fit_batch, training_plan
from paucal.tasks.classification.unlabelled_images import open_unlabelled
from paucal.training import Plan
from paucal.types import UserError
from paucal.wording import counted

PROBE_FILE = "probe.safetensors"
STREAMED_REMARK = "no linear probe, since the images are streamed; all steps fine-tune the pretrained weights"
TUNING_METHOD = "supervised"  # method of a run that chooses pretrained weights, if the user gave no method
# Settings that apply to weights given by the user, or to random weights. If one of these settings is given, the run
# chooses no pretrained weights.
SETTINGS_OF_GIVEN_WEIGHTS = ("init_head", "init_network", "attention_init", "model_args")
PROCESSES_REMARK = (
    "no linear probe and no trials, since these need a single process; all steps fine-tune the pretrained weights"
)
MULTI_LABEL_REMARK = (
    "several labels: trained with one sigmoid per class (binary cross-entropy), scored by mean average precision"
)


@dataclass(frozen=True)
class TrainingSetup(RunSetup[TrainSettings]):
    """The checked inputs of a supervised run, before anything is written.

    Attributes:
        tune_record: Record of the auto-tuning; None for a run without auto-tuning.
        findings: Problems found in the images of a new run, most serious first; empty for a resumed run.
        frozen_views: Activations that training reads instead of images; None to read images.
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

    Args:
        settings: Settings of the user, or the stored settings of `run`.
        given: Origin of each setting that was given, such as "flag" or "config".
        bars: Function that opens a progress bar with a title.
        run: Run to resume; None for a new run.
        opened: Images of the run if an earlier call has opened them; None to open them.
    """
    chooses_start = run is None and _may_choose_start(settings, given)
    original_inputs = settings, given
    start = WeightsSource() if chooses_start else find_start(settings, run)
    data = opened or _open_images(settings, bars, run)
    choice = WeightsChoice((), "")
    if chooses_start:
        settings, given, choice = _choose_start(settings, given, data)
        start = find_start(settings)
    images, facts = data.images, replace(data.facts(), start=_initial_weights_info(start, settings.init))
    fit_memory = settings.batch_size == "auto"
    settings, reasons = resolve_training(settings, facts)
    data, skipped_images = _decode_at_size(settings, data, bars, run, opened)
    if skipped_images:  # choose the settings that depend on the number of images again
        return assemble(*original_inputs, bars, run, split_images(original_inputs[0], data.images))
    images = data.images
    tune_record = _open_tune_record(settings, choice, run, in_memory=images.stream is None)
    objective, spec, notes = _build_objective(settings, len(images.classes), images.reading.channels)
    if run is None and _needs_test_split(original_inputs[0], data, tune_record, objective):
        return assemble(*original_inputs, bars, run, split_images(original_inputs[0], images, keep_test=True))
    set_label_mode(settings, data, objective)
    if objective.data_request.label_maps:
        with bars("reading label maps") as advance:
            data = with_label_maps(data, settings.labels, settings.method, advance)
    preprocess = run_preprocessing(settings, data, start.input and start.input(settings.model), run)
    held_out_keys = frozenset(key for part in ("val", "test") for key in take_strings(images.keys, data.part(part)))
    settle_terms(settings, objective, RunImages(images, held_out_keys, Normalisation(preprocess.mean, preprocess.std)))
    set_class_weights(settings, data, objective)
    card = ModelCard(spec, images.classes, preprocess)
    if images.multi_hot is not None:
        # Runs with validation images choose other thresholds after training.
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
        *([PROCESSES_REMARK] if choice.candidates and settings.processes > 1 else ()),
        *images.notes,
        *filter(None, [describe_channels(images.reading.channels)]),
        *([MULTI_LABEL_REMARK] if images.multi_hot is not None else ()),
        *(_describe_unlabelled(settings, images, objective) if run is None else ()),
        *([STREAMED_REMARK] if images.stream is not None and choice.candidates else ()),
        *(f"{finding.text}; {finding.advice}" for finding in findings if finding.level != "note"),
        *check_plan(settings, facts.n_train),
        *(load_report.lines() if load_report else ()),
        *seen_by_initial_weights(settings.init, images, data.split),
        *check_tuning(settings, objective, images.class_counts(data.part("train")).tolist()),
        *notes,
    ]
    _check_request(objective, settings, card)
    plan, origin = _make_plan(settings, facts, tune_record), list_origins(settings, given, reasons)
    run_fields = (settings, origin, data, plan, objective, card, tuple(remarks), load_report)
    return TrainingSetup(*run_fields, tune_record, findings)


def _needs_test_split(
    settings: TrainSettings, data: SplitImages, tune_record: TuneRecord | None, objective: Objective
) -> bool:
    """Return whether a small set needs a test split, because the run fits no linear probe to be cross-validated."""
    if len(data.part("test")) or not too_few_for_test(settings, data.images):
        return False
    return tune_record is None or not tune_record.candidates or linear_classifier(objective.deployable()) is None


def _make_plan(settings: TrainSettings, facts: DataAndMachine, tune_record: TuneRecord | None) -> Plan:
    plan = training_plan(settings, facts.n_train, facts.n_classes)
    return replace(plan, total_steps=0) if tune_record is not None and not tune_record.tune else plan


def _open_tune_record(
    settings: TrainSettings, choice: WeightsChoice, run: RunFolder | None, in_memory: bool
) -> TuneRecord | None:
    """Return the auto-tuning record that `run` stored, or a new record; None for a run without auto-tuning.

    `in_memory` is False for streamed images, to which no probe is fitted.
    """
    if run is not None:
        return read_record(run)
    tune_record = None
    # A probe needs one process and all images in memory; without candidates, the run fine-tunes from the start.
    candidates = choice.candidates if settings.processes == 1 and in_memory else ()
    if settings.time is not None:
        tune_record = TuneRecord(candidates, parse_duration(settings.time, "--time"))
    elif choice.candidates:
        tune_record = TuneRecord(candidates)
    _check_new_run(settings, tune_record, in_memory)
    return tune_record


def _check_new_run(settings: TrainSettings, tune_record: TuneRecord | None, in_memory: bool) -> None:
    check_rates(settings)
    has_frozen_features = tune_record is not None and bool(tune_record.candidates)
    if settings.epochs == 0 and not in_memory:
        raise UserError(
            "--epochs 0 keeps the linear probe, which needs the features of all images in memory, but these shards "
            "are streamed: give --epochs 1 or more, or train on a subset that is small enough to be decoded once."
        )
    if settings.curve and not has_frozen_features:
        raise UserError(
            "--curve fits heads to the frozen features of pretrained weights, but this run computes no such "
            "features: remove --curve, or compare label fractions with 'paucal compare --labels 25% 50% 100%'."
        )
    if settings.unlabelled is not None and not has_frozen_features:
        raise UserError(
            "--unlabelled fits a head to the frozen features of pretrained weights, but this run computes no such "
            "features. Remove --unlabelled, and pretrain on these images with 'paucal pretrain'; or label the images "
            f"with another run ('paucal predict RUN {shlex.quote(settings.unlabelled)} --to csv --output PREDICTIONS') "
            f"and train on {shlex.quote(f'{settings.data}{SEPARATOR}PREDICTIONS')} with --val-fraction 0. Then "
            f"{settings.data} needs a 'test' folder, since predicted labels must not be used for evaluation."
        )
    if settings.epochs == 0 and not has_frozen_features:
        raise UserError(
            "--epochs 0 keeps the linear probe of pretrained weights, but this run starts from random weights: "
            "give --epochs 1 or more."
        )


def _describe_unlabelled(settings: TrainSettings, images: ImageSet, objective: Objective) -> list[str]:
    if settings.unlabelled is None:
        return []
    if images.multi_hot is not None:
        raise UserError(
            "--unlabelled needs images with one label each, but these may have several labels: remove --unlabelled."
        )
    if linear_classifier(objective.deployable()) is None:
        raise UserError(
            f"--unlabelled replaces the model's linear classifier, but {settings.model} has no linear classifier: "
            "remove --unlabelled."
        )
    unlabelled = open_unlabelled(settings)
    return [f"{counted(len(unlabelled), 'image')} without labels in {settings.unlabelled}", *unlabelled.notes]


def head_file_name(image_size: Sequence[int]) -> str:
    """Return the file name of a head fitted at an image size that differs from the probe's."""
    return f"head-{'x'.join(map(str, image_size))}.safetensors"


def load_head(run: RunFolder, objective: Objective, image_size: Sequence[int] | None) -> None:
    """Load a stored head into the deployed network: the head for an image size, or else the probe.

    Nothing is loaded if the run has stored neither.
    """
    path = run.path / head_file_name(image_size or [])
    path = path if path.is_file() else run.path / PROBE_FILE
    classifier = linear_classifier(objective.deployable())
    if not path.is_file() or classifier is None:
        return
    try:
        classifier.load_state_dict(read_weights(path))
    except RuntimeError as problem:
        raise UserError(f"{str(path)!r} does not match the run's model: train again.") from problem


def _may_choose_start(settings: TrainSettings, given: Mapping[str, str]) -> bool:
    """Return whether the run chooses its pretrained weights, because the user gave no weights.

    A run with a recipe or with label maps follows a paper, and chooses weights only with `--init auto`.
    """
    follows_paper = settings.recipe is not None or method_of(settings).label_maps
    return may_choose_start(settings, given, SETTINGS_OF_GIVEN_WEIGHTS) and (settings.init == AUTO or not follows_paper)


def _choose_start(
    settings: TrainSettings, given: Mapping[str, str], data: SplitImages
) -> tuple[TrainSettings, dict[str, str], WeightsChoice]:
    """Choose the pretrained weights; also choose the supervised method, if the user gave no other method's settings."""
    settings, given, choice = choose_start(settings, given, data.facts().median_side)
    may_change_method = "method" not in given and not unused_by(replace(settings, method=TUNING_METHOD)) & set(given)
    if choice.candidates and may_change_method:
        settings = replace(settings, method=TUNING_METHOD)
        given["method"] = "auto: the run starts from pretrained weights, for which the default method has shown no gain"
    return settings, given, choice


def choose_image_size(data: SplitImages) -> list[int]:
    """Return the image size that a run would choose for these images, in pixels: [side] or [height, width]."""
    settings, given = TrainSettings(), {}
    settings, given, _ = _choose_start(settings, given, data)
    facts = replace(data.facts(), start=_initial_weights_info(find_start(settings), settings.init))
    return list(resolve_training(settings, facts)[0].img_size)


def _initial_weights_info(start: WeightsSource, init: str | None) -> InitialWeightsInfo | None:
    """Return what the automatic settings need to know about the initial weights; None for random weights."""
    return None if start.facts is None else replace(start.facts, chosen=init == AUTO)


def _open_images(settings: TrainSettings, bars: Bars, run: RunFolder | None) -> SplitImages:
    with bars("looking through shards") as advance:
        images = find_images(settings, advance=advance)
    if settings.img_size is not None:
        reading = reading_for(settings.img_size, first_reading(settings, images, stored_reading(run)))
        with bars("reading images") as advance:
            images = decode_images(images, settings, reading, advance)
    return split_images(settings, images) if run is None else SplitImages(images, stored_split(run, images))


def _decode_at_size(
    settings: TrainSettings, data: SplitImages, bars: Bars, run: RunFolder | None, opened_data: SplitImages | None
) -> tuple[SplitImages, bool]:
    """Return the images decoded at the network's image size, and whether unreadable images were skipped.

    Images of `opened_data` that were decoded at a larger size are kept, since auto-tuning also trains at smaller sizes.
    """
    images = data.images
    base_reading = images.reading if images.reading.side else first_reading(settings, images, stored_reading(run))
    reading = reading_for(settings.img_size, base_reading)
    current_side, needed_side = images.reading.side or 0, reading.side or 0
    if current_side == needed_side or (opened_data is not None and current_side > needed_side):
        return data, False
    with bars("reading images") as advance:
        images = decode_images(images, settings, reading, advance)
    return replace(data, images=images), len(images) < len(data.images)


def _build_objective(
    settings: TrainSettings, n_classes: int, channels: int
) -> tuple[Objective, BackboneSpec, list[str]]:
    with initial_weights(settings.seed):
        spec, notes = checked_backbone(settings, n_classes, channels)
        return build_objective(settings, spec), spec, notes


def _check_request(objective: Objective, settings: TrainSettings, card: ModelCard) -> None:
    request = objective.data_request
    if settings.frozen_views and (reason := why_unsupported(settings, objective)) is not None:
        raise UserError(f"--frozen-views is not supported here: {reason}.")
    if settings.images_per_pass < request.smallest_batch:
        raise UserError(
            f"--batch-size is {settings.images_per_pass}, but --method {settings.method} needs at least "
            f"{request.smallest_batch} images in a forward pass: give a larger --batch-size."
        )
    for crops in request.views:
        view_transform(crops, card.preprocessing, settings, request.geometry)
