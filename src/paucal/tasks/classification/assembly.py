"""Assemble a classification run: open its images, choose its settings, and build its network and objective."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from paucal.backbones.spec import BackboneSpec
from paucal.backbones.weights.load_report import LoadReport
from paucal.data.channels.pixel_format import describe_channels
from paucal.data.checking.findings import Finding
from paucal.data.string_arrays import take_strings
from paucal.evaluation.calibration import DEFAULT_THRESHOLD
from paucal.evaluation.seen_images import initial_weights_overlap_remarks
from paucal.methods.contract import RunImages
from paucal.methods.supervised import tuning_remarks
from paucal.methods.training import adapt_terms_to_run, build_objective, method_of, resolve_training, unused_settings_of
from paucal.methods.training_settings import TUNING_METHOD, TrainSettings
from paucal.models.card import ModelCard
from paucal.models.features import linear_classifier
from paucal.objectives import Objective
from paucal.rules.resolve import DataAndMachine, backbone_spec
from paucal.runner.images import (
    SplitImages,
    decode_images,
    decode_options_for_size,
    initial_decode_options,
    normalisation,
    open_undecoded,
    stored_decode_options,
    stored_preprocessing,
    with_label_maps,
)
from paucal.runner.initial_weights import (
    WeightsChoice,
    WeightsSource,
    choose_initial_weights,
    chooses_initial_weights,
    find_initial_weights,
    load_initial_weights,
)
from paucal.runner.job import Bars, RunSetup
from paucal.runner.resuming import stored_split
from paucal.runner.time_budget import parse_duration
from paucal.runner.trainer_plan import check_memory, hardware, seeded_random_weights
from paucal.runs import RunFolder
from paucal.runs.folder import CHOSEN_WEIGHTS
from paucal.settings.options import automatic_origin, list_origins
from paucal.tasks.classification.auto_tune.record import TuneRecord, load_head, read_record
from paucal.tasks.classification.checks import (
    check_new_run,
    check_objective,
    set_class_weights,
    use_sigmoids_if_multi_label,
)
from paucal.tasks.classification.frozen_views import FrozenViewActivations
from paucal.tasks.classification.images import open_unlabelled, quick_check, split_images, too_few_for_test
from paucal.tasks.classification.trainer_inputs import (
    LOSS_COLUMN,
    make_preprocessing,
    make_val_predictor,
    reduce_batch_to_memory,
    remarks_on_plan,
    training_plan,
    validation_scores,
)
from paucal.training import Validation
from paucal.types import height_and_width
from paucal.wording import counted

STREAMED_REMARK = "no linear probe, since the images are streamed; all steps fine-tune the pretrained weights"
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
    """The checked inputs of a supervised run, before anything is written."""

    tune_record: TuneRecord | None = None  # record of auto-tuning; None for a run without auto-tuning
    findings: tuple[Finding, ...] = ()  # problems of the images, most serious first; empty for a resumed run
    # Activations that training reads instead of images; None to read images.
    frozen_views: FrozenViewActivations | None = None

    def validation(self) -> Validation | None:
        """Return the `Validation` that scores epochs and selects the best one; None without validation images."""
        if not len(self.data.split_indices("val")):
            return None
        floor = None if self.tune_record is None else self.tune_record.score_to_beat
        predict = make_val_predictor(self.data, self.card.preprocessing, self.settings)

        def score(module: nn.Module, device: torch.device) -> Mapping[str, float]:
            return validation_scores(predict(module, device))

        return Validation(score, self.data.primary_metric.column, LOSS_COLUMN, floor, self.settings.soup)


@dataclass(frozen=True)
class _SettingsAndImages:
    """All settings and the decoded images of a run, before its network is built."""

    settings: TrainSettings
    origins: Mapping[str, str]  # origin of each setting that was given, or chosen together with the pretrained weights
    reasons: Mapping[str, str]  # reason for each setting that a rule has chosen
    data: SplitImages
    facts: DataAndMachine  # properties of the data and the machine, from which the rules have chosen settings
    weights_source: WeightsSource
    choice: WeightsChoice  # automatic choice of pretrained weights; has no candidates if the weights were given


def assemble(
    settings: TrainSettings,
    origins: Mapping[str, str],
    bars: Bars,
    run: RunFolder | None = None,
    opened: SplitImages | None = None,
) -> TrainingSetup:
    """Open the data, choose the settings that were not given and build the objective, without writing anything.

    `run` is the run folder, if it exists, as in auto-tuning and when a run is resumed. The split, the preprocessing and
    the auto-tuning record that it contains are used. `opened` are the images if an earlier call has opened them.
    """
    resolved = _resolve_settings_and_images(settings, origins, bars, run, opened)
    images = resolved.data.images
    tune_record = _open_tune_record(resolved.settings, resolved.choice, run, in_memory=images.stream is None)
    with seeded_random_weights(resolved.settings.seed):
        spec, notes = backbone_spec(resolved.settings, len(images.classes), images.decode_options.channels)
        notes = [*check_memory(resolved.settings, spec), *notes]
        objective = build_objective(resolved.settings, spec)
    if run is None and not len(resolved.data.split_indices("test")) and too_few_for_test(settings, images):
        has_candidates = tune_record is not None and bool(tune_record.candidates)
        # Without a linear probe to cross-validate, even a small set needs a test split.
        if not has_candidates or linear_classifier(objective.deployable()) is None:
            return assemble(settings, origins, bars, run, split_images(settings, images, keep_test=True))
    resolved, card = _adapt_objective(resolved, objective, spec, bars, run)
    if settings.batch_size == "auto":
        settings, reason = reduce_batch_to_memory(resolved.settings, resolved.data, objective, card)
        origins = {name: text for name, text in resolved.origins.items() if name not in ("batch_size", "accumulate")}
        reasons = {**resolved.reasons, "batch_size": reason}
        resolved = replace(resolved, settings=settings, origins=origins, reasons=reasons)
    settings, data = resolved.settings, resolved.data
    load_report = load_initial_weights(
        resolved.weights_source, settings.model, objective, images.classes, settings.init_head
    )
    if tune_record is not None and run is not None and not run.last.exists():
        load_head(run, objective, settings.img_size)  # tuning starts from the stored head
    check_objective(objective, settings, card, data, is_new=run is None)
    findings = tuple(quick_check(data)) if run is None else ()
    remarks = _list_remarks(resolved, objective, load_report, findings, is_new=run is None)
    plan = training_plan(settings, resolved.facts.n_train, resolved.facts.n_classes)
    return TrainingSetup(
        settings=settings,
        origins=list_origins(settings, resolved.origins, resolved.reasons),
        data=data,
        plan=replace(plan, total_steps=0) if tune_record is not None and not tune_record.is_tuned else plan,
        objective=objective,
        card=card,
        remarks=(*remarks, *notes),
        load_report=load_report,
        tune_record=tune_record,
        findings=findings,
    )


def _resolve_settings_and_images(
    settings: TrainSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None, opened: SplitImages | None
) -> _SettingsAndImages:
    """Open and decode the images, and choose the settings that were not given.

    If unreadable images were skipped, the remaining images are split again, and the settings are chosen again.
    """
    chooses_weights = run is None and chooses_initial_weights(settings, origins, SETTINGS_OF_GIVEN_WEIGHTS)
    # A run with a recipe or with label maps follows a paper, and chooses weights only with `--init auto`.
    if chooses_weights and (settings.recipe is not None or method_of(settings).label_maps):
        chooses_weights = settings.init == CHOSEN_WEIGHTS
    source = WeightsSource() if chooses_weights else find_initial_weights(settings, run)
    data, choice = opened or _open_images(settings, bars, run), WeightsChoice((), "")
    while True:
        run_settings, run_origins = settings, origins
        if chooses_weights:
            run_settings, run_origins, choice = _choose_initial_weights(settings, origins, data)
            source = find_initial_weights(run_settings)
        facts = _collect_facts(data, source, run_settings.init)
        resolved_settings, reasons = resolve_training(run_settings, facts)
        hardware(resolved_settings)  # raises an error for a missing device before images are decoded
        decoded, skipped_images = _decode_at_size(resolved_settings, data, bars, run, opened)
        if not skipped_images:
            return _SettingsAndImages(
                settings=resolved_settings,
                origins=run_origins,
                reasons=reasons,
                data=decoded,
                facts=facts,
                weights_source=source,
                choice=choice,
            )
        data = opened = split_images(settings, decoded.images)


def _adapt_objective(
    resolved: _SettingsAndImages, objective: Objective, spec: BackboneSpec, bars: Bars, run: RunFolder | None
) -> tuple[_SettingsAndImages, ModelCard]:
    """Adapt the objective to the labels of the images; return `resolved` with any label maps, and the `ModelCard`."""
    settings, data, images, source = resolved.settings, resolved.data, resolved.data.images, resolved.weights_source
    use_sigmoids_if_multi_label(settings, data, objective)
    if objective.data_request.label_maps:
        with bars("reading label maps") as advance:
            data = with_label_maps(data, settings.labels, settings.method, advance)
    weights_input, preprocess = source.input and source.input(settings.model), stored_preprocessing(run)
    if preprocess is None or preprocess.image_size != height_and_width(settings.img_size):
        # Stored preprocessing for another image size belongs to the probe.
        statistics, decode_options = normalisation(settings, data, weights_input), data.images.decode_options
        preprocess = make_preprocessing(settings, statistics, weights_input, decode_options.value_range)
        preprocess = replace(preprocess, channel_ranges=decode_options.channel_ranges)
    held_out_keys = frozenset(
        key for part in ("val", "test") for key in take_strings(images.keys, data.split_indices(part))
    )
    adapt_terms_to_run(settings, objective, RunImages(images, held_out_keys, preprocess.normalisation))
    set_class_weights(settings, data, objective)
    card = ModelCard(spec, images.classes, preprocess)
    if images.multi_hot is not None:
        # Runs with validation images choose other thresholds after training.
        card = card.with_thresholds([DEFAULT_THRESHOLD] * len(images.classes))
    return replace(resolved, data=data), card


def _list_remarks(
    resolved: _SettingsAndImages,
    objective: Objective,
    load_report: LoadReport | None,
    findings: Sequence[Finding],
    is_new: bool,
) -> list[str]:
    """Return the sentences to print before the run starts."""
    settings, data, images, choice = resolved.settings, resolved.data, resolved.data.images, resolved.choice
    unlabelled_remarks = []
    if is_new and settings.unlabelled is not None:
        unlabelled = open_unlabelled(settings)
        count = counted(len(unlabelled), "image")
        unlabelled_remarks = [f"{count} without labels in {settings.unlabelled}", *unlabelled.notes]
    return [
        *([choice.remark] if choice.remark else ()),
        *([PROCESSES_REMARK] if choice.candidates and settings.processes > 1 else ()),
        *images.notes,
        *filter(None, [describe_channels(images.decode_options.channels)]),
        *([MULTI_LABEL_REMARK] if images.multi_hot is not None else ()),
        *unlabelled_remarks,
        *([STREAMED_REMARK] if images.stream is not None and choice.candidates else ()),
        *(f"{finding.text}; {finding.advice}" for finding in findings if finding.level != "note"),
        *remarks_on_plan(settings, resolved.facts.n_train),
        *(load_report.lines() if load_report else ()),
        *initial_weights_overlap_remarks(settings.init, images, data.split),
        *tuning_remarks(settings, objective),
    ]


def _open_tune_record(
    settings: TrainSettings, choice: WeightsChoice, run: RunFolder | None, in_memory: bool
) -> TuneRecord | None:
    """Return the auto-tuning record that `run` stored, or a new record; None for a run without auto-tuning."""
    if run is not None:
        return read_record(run)
    tune_record = None
    # A probe needs one process and all images in memory; without candidates, the run fine-tunes from the start.
    candidates = choice.candidates if settings.processes == 1 and in_memory else ()
    if settings.time is not None:
        tune_record = TuneRecord(candidates, parse_duration(settings.time, "--time"))
    elif choice.candidates:
        tune_record = TuneRecord(candidates)
    check_new_run(settings, tune_record, in_memory)
    return tune_record


def _choose_initial_weights(
    settings: TrainSettings, origins: Mapping[str, str], data: SplitImages
) -> tuple[TrainSettings, dict[str, str], WeightsChoice]:
    """Choose the pretrained weights, and the supervised method unless the user gave a method or a method's settings."""
    settings, origins, choice = choose_initial_weights(settings, origins, data.facts().median_side)
    settings_without_effect = unused_settings_of(replace(settings, method=TUNING_METHOD)) & set(origins)
    if choice.candidates and "method" not in origins and not settings_without_effect:
        settings = replace(settings, method=TUNING_METHOD)
        origins["method"] = automatic_origin(
            "the run starts from pretrained weights, for which the default method has shown no gain"
        )
    return settings, origins, choice


def choose_image_size(data: SplitImages) -> list[int]:
    """Return the image size that a run would choose for these images, in pixels: [side] or [height, width]."""
    settings, _, _ = _choose_initial_weights(TrainSettings(), {}, data)
    facts = _collect_facts(data, find_initial_weights(settings), settings.init)
    return list(resolve_training(settings, facts)[0].img_size)


def _collect_facts(data: SplitImages, weights_source: WeightsSource, init: str | None) -> DataAndMachine:
    weights = weights_source.facts
    weights = None if weights is None else replace(weights, chosen=init == CHOSEN_WEIGHTS)
    return replace(data.facts(), initial_weights=weights)


def _open_images(settings: TrainSettings, bars: Bars, run: RunFolder | None) -> SplitImages:
    with bars("looking through shards") as advance:
        images = open_undecoded(settings, advance=advance)
    if settings.img_size is not None:
        decode_options = decode_options_for_size(
            settings.img_size, initial_decode_options(settings, images, stored_decode_options(run))
        )
        with bars("reading images") as advance:
            images = decode_images(images, settings, decode_options, advance)
    return split_images(settings, images) if run is None else SplitImages(images, stored_split(run, images))


def _decode_at_size(
    settings: TrainSettings, data: SplitImages, bars: Bars, run: RunFolder | None, opened_data: SplitImages | None
) -> tuple[SplitImages, bool]:
    """Return the images decoded at the network's image size, and whether unreadable images were skipped."""
    images, base_options = data.images, data.images.decode_options
    if not base_options.side:
        base_options = initial_decode_options(settings, images, stored_decode_options(run))
    decode_options = decode_options_for_size(settings.img_size, base_options)
    current_side, needed_side = images.decode_options.side or 0, decode_options.side or 0
    # Images of `opened_data` at a larger size are kept, since auto-tuning also trains at smaller sizes.
    if current_side == needed_side or (opened_data is not None and current_side > needed_side):
        return data, False
    with bars("reading images") as advance:
        images = decode_images(images, settings, decode_options, advance)
    return replace(data, images=images), len(images) < len(data.images)
