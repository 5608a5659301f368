"""The first model: the best of the candidate pretrained weights, with a linear head fitted to their features."""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from paucal.backbones.stage_classifier import add_stage_classifier, last_stage_poolings
from paucal.evaluation.predictions import Predictions
from paucal.models.card import ModelCard
from paucal.models.features import linear_classifier
from paucal.models.precision import EXPLICIT_CHOICES
from paucal.models.trained import save_trained
from paucal.runner.clock import end_time_text
from paucal.runner.images import SplitImages, compute_frozen_features
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.heads import (
    HEADS,
    MAX_COMPARISON_IMAGES,
    HeadComparison,
    compare_heads,
    store_held_out_logits,
)
from paucal.tasks.classification.auto_tune.learning_curve import measure_learning_curve, write_curve
from paucal.tasks.classification.auto_tune.precision import choose_feature_precision
from paucal.tasks.classification.auto_tune.probe import MAX_COMPARED, Head, fit_head, score_head, stratified_sample
from paucal.tasks.classification.auto_tune.record import (
    LOSSES_KEY,
    PROBE_FILE,
    EvaluatedModel,
    calibrated_losses,
    save_head,
)
from paucal.tasks.classification.auto_tune.state import FittedHead, TuneState, cannot_evaluate_tuning
from paucal.tasks.classification.auto_tune.taught_head import learn_from_teacher
from paucal.wording import counted, format_duration

# Maximum fractions of the time budget for computing the features of the training images: in a run that is fine-tuned
# afterwards, and in a run that keeps the probe. With a PROBE_FRACTION of 0.2, tuning on 3,068 and 4,502 images had a
# third less time, and the accuracy of four runs of five minutes was 0.5 points lower.
PROBE_FRACTION, PROBE_ONLY_FRACTION = 0.1, 0.5
MIN_EPOCHS_AFTER = 3  # the chosen candidate must leave time for this number of epochs of tuning
# Key in the record of a run for each stored field of `PrecisionChoice`.
PRECISION_KEYS = {"speed": "arithmetic_speed", "measured": "arithmetic_measured"}
TRAINING_COST = 2.0  # cost of training on an image, in forward passes
# Limits of the comparison of candidates: fraction of the time budget, seconds, and number of training images. The
# limits are low because users wait for the first model, and because tuning needs the time.
MAX_CANDIDATE_FRACTION, MAX_CANDIDATE_SECONDS, MAX_CANDIDATE_IMAGES = 0.05, 60.0, 300
NEXT_TIME_RATIO = 1.5  # assumed time of the next candidate, as a multiple of the last candidate's time


def compare_candidates(state: TuneState) -> None:
    """Compare the candidate weights by cross-validation on some training images; continue with the best weights."""
    setup, candidates, rows = state.setup, [], state.candidate_rows
    if rows is None:
        other_names = ", ".join(state.record.candidates[1:])
        model = setup.settings.model
        state.console.say(f"note: no time to compare {model} with {other_names}; choose a model with --model")
        return
    labels, max_seconds = _training_labels(setup), _max_comparison_seconds(state)
    indices, groups = setup.data.split_indices("train")[rows.numpy()], training_groups(setup.data, rows)
    for name in state.record.candidates:
        start_time = time.monotonic()
        trial_setup = setup if name == setup.settings.model else state.reassemble(model=name)
        with state.console.progress(f"trying {name}") as advance:
            network, preprocess = trial_setup.objective.deployable(), trial_setup.card.preprocessing
            features = compute_frozen_features(network, setup.data, indices, preprocess, trial_setup.settings, advance)
        head = fit_head(features, labels[rows], len(setup.card.classes), setup.settings.seed, (100.0,), groups)
        seconds = time.monotonic() - start_time
        candidates.append(EvaluatedModel(name, head.cross_validated or 0.0, seconds, {"images": len(rows)}))
        if _best_affordable_candidate(state, candidates).name == name and trial_setup is not setup:
            state.setup = trial_setup
        # The next candidate's time is estimated from the last one's: timing a few images says little on a busy machine.
        if sum(model.seconds for model in candidates) + NEXT_TIME_RATIO * candidates[-1].seconds > max_seconds:
            break
    format_score = setup.data.primary_metric.format_score
    scores = ", ".join(f"{model.name} {format_score(model.score)} in {model.seconds:.0f} s" for model in candidates)
    state.console.say(f"candidates on {len(rows)} training images, cross-validated: {scores}")
    winner = _best_affordable_candidate(state, candidates)
    if state.setup.settings.model != winner.name:
        state.setup = state.reassemble(model=winner.name)
    _time_forward_pass(state)
    count = counted(len(candidates), "candidate")
    reason = f"best of {count} on {len(rows)} training images; the fastest of nearly equal ones"
    if winner != (best := pick_fastest_good_candidate(candidates)):
        reason = f"best of {len(candidates)} candidates that leaves time for tuning"
        state.console.say(f"note: {best.name} would leave no time for tuning; continuing with {winner.name}")
    state.replace_setup(state.setup, {"model": reason})
    state.save(candidate_scores=tuple(candidates))


def _training_labels(setup: TrainingSetup) -> Tensor:
    return torch.from_numpy(setup.data.images.targets).long()[torch.from_numpy(setup.data.split_indices("train"))]


def _max_comparison_seconds(state: TuneState) -> float:
    return min(MAX_CANDIDATE_SECONDS, MAX_CANDIDATE_FRACTION * state.record.budget or MAX_CANDIDATE_SECONDS)


def _best_affordable_candidate(state: TuneState, candidates: Sequence[EvaluatedModel]) -> EvaluatedModel:
    """Return the best of the candidates that leave time for `MIN_EPOCHS_AFTER` epochs of tuning."""
    if state.record.budget:
        seconds_left = state.record.budget - state.spent_seconds
        candidates = select_affordable_candidates(candidates, seconds_left, _count_forward_passes(state))
    return pick_fastest_good_candidate(candidates)


def _count_forward_passes(state: TuneState) -> float:
    """Return the cost of a run with `MIN_EPOCHS_AFTER` epochs of tuning, in forward passes of single images."""
    counts = state.setup.data.counts()
    return sum(counts.values()) + MIN_EPOCHS_AFTER * TRAINING_COST * counts["train"]


def select_affordable_candidates(
    candidates: Sequence[EvaluatedModel], seconds: float, n_images: float
) -> Sequence[EvaluatedModel]:
    """Return the candidates that can process `n_images` images in `seconds` seconds, or else the fastest candidate.

    On 5,000 small images, a network that was 50 % slower and five points better left no time for tuning: its test
    accuracy was 74.9 %, against 84.2 % after tuning the faster network.
    """
    fast_enough = [model for model in candidates if model.seconds / model.details["images"] * n_images <= seconds]
    return fast_enough or [min(candidates, key=lambda model: model.seconds)]


def pick_fastest_good_candidate(candidates: Sequence[EvaluatedModel]) -> EvaluatedModel:
    """Return the fastest candidate with a score within a standard error of the best, to save time for tuning."""
    best = max(candidates, key=lambda model: model.score)
    error = math.sqrt(best.score * (1 - best.score) / best.details["images"])
    return min((model for model in candidates if model.score >= best.score - error), key=lambda model: model.seconds)


def prepare_first_model(state: TuneState) -> None:
    """Choose the precision of the frozen network and the images to compare candidates on; print the expected time."""
    _time_forward_pass(state)
    if state.record.probe is not None:
        # A resumed run keeps its precision, since the run may compute features again for heads at other image sizes.
        details = state.record.probe.details  # older records lack some measurements
        measurements = {name: details[key] for name, key in PRECISION_KEYS.items() if key in details}
        state.precision = replace(EXPLICIT_CHOICES[details.get("arithmetic", "32-true")], **measurements)
        return
    state.precision = choose_feature_precision(state.setup)
    if state.precision.measured:
        state.console.say(f"precision of the features: {state.precision.reason}")
    counts, budget = state.setup.data.counts(), state.record.budget
    if len(state.record.candidates) > 1 and not state.record.candidate_scores:
        rows = stratified_sample(_training_labels(state.setup), MAX_CANDIDATE_IMAGES, state.setup.settings.seed)
        candidate_seconds = state.image_seconds * len(rows)
        larger_run_seconds = NEXT_TIME_RATIO * state.image_seconds * _count_forward_passes(state)
        leaves_no_time = budget and larger_run_seconds > budget - state.spent_seconds
        takes_too_long = candidate_seconds * (1 + NEXT_TIME_RATIO) > _max_comparison_seconds(state)
        state.candidate_rows = None if leaves_no_time or takes_too_long else rows
    first_seconds = state.image_seconds / state.precision.speed * (counts["train"] + counts["val"])
    first_seconds = min(first_seconds, _max_probe_seconds(state) or first_seconds)
    text = f"time: the first model takes about {format_duration(first_seconds + 5)}"
    if state.candidate_rows is not None:
        text += f", and up to {format_duration(_max_comparison_seconds(state))} more to compare weights"
    if budget:
        text += (
            f"; the whole run at most {format_duration(budget)}, until {end_time_text(budget - state.spent_seconds)}"
        )
    state.console.say(text)


def _time_forward_pass(state: TuneState) -> None:
    """Time the frozen network on a few images."""
    setup, sample = state.setup, state.setup.data.split_indices("train")[:16]
    for _ in range(2):  # the first pass is a warm-up
        start_time = time.perf_counter()
        compute_frozen_features(
            setup.objective.deployable(), setup.data, sample, setup.card.preprocessing, setup.settings
        )
        state.image_seconds = (time.perf_counter() - start_time) / len(sample)


def _max_probe_seconds(state: TuneState) -> float:
    """Return the maximum seconds for computing the features of the training images; 0 if there is no time budget."""
    keeps_probe = state.setup.settings.epochs == 0 or cannot_evaluate_tuning(state.setup)
    return (PROBE_ONLY_FRACTION if keeps_probe else PROBE_FRACTION) * state.record.budget


def fit_probe(state: TuneState) -> None:
    """Fit and evaluate the linear head, and save the network with this head as the first model of the run."""
    if state.record.probe is not None:
        return
    setup, start_time = state.setup, time.monotonic()
    fitted = learn_from_teacher(state, fit_probe_head(state, setup, "first model: features", compare=True))
    state.first_model = fitted if setup.settings.unlabelled else None
    state.image_seconds = fitted.seconds_per_image  # measured on more images than before
    classifier = linear_classifier(setup.objective.deployable())
    if classifier is not None:
        fitted.head.copy_to(classifier)
    save_head(state.run, fitted.head, PROBE_FILE)  # tuning starts from logistic regression, even if another head won
    network, card = setup.objective.deployable(), setup.card
    if fitted.comparison.head is not None:
        network, card = copy_with_head(network, card, fitted.comparison.head, staged=True)
    if fitted.comparison.held_out is not None and not len(setup.data.split_indices("val")):
        store_held_out_logits(state.run, fitted.comparison.held_out, fitted.rows)
        if setup.settings.calibrate == "temperature":
            card = card.at_temperature(fitted.comparison.held_out.temperature)
    if fitted.curve is not None:
        write_curve(state.run, fitted.curve)
    save_trained(state.run, network, card)
    best = fitted.comparison.head or fitted.head
    details = {
        "model": setup.settings.model,
        "img_size": list(setup.settings.img_size),
        "strength": best.strength,
        "images": fitted.n_images,
        "cross_validated": best.cross_validated,
        "head": fitted.comparison.name,
        "heads": dict(fitted.comparison.losses),
        "race_seconds": fitted.compare_seconds,
        LOSSES_KEY: fitted.losses,
        "arithmetic": state.precision.precision,
        **{key: getattr(state.precision, name) for name, key in PRECISION_KEYS.items()},
    }
    state.save(probe=EvaluatedModel("probe", fitted.score, time.monotonic() - start_time, details))
    images_of_score = "validation images" if len(setup.data.split_indices("val")) else "held-out training images"
    score = setup.data.primary_metric.format_score(fitted.score, images_of_score)
    state.console.say(
        f"first model after {format_duration(state.spent_seconds)}: {score} "
        f"(a linear head on frozen features of {fitted.n_images} images, {fitted.comparison.name}); the model is ready "
        f"for use in {state.run.path}"
    )


def copy_with_head(network: nn.Module, card: ModelCard, head: Head, staged: bool) -> tuple[nn.Module, ModelCard]:
    """Return a copy of a network on the CPU with another head, and its card; a `staged` head also reads last stages."""
    network = copy.deepcopy(network).cpu()
    if staged:
        network = add_stage_classifier(network, card.backbone.image_size)
    classifier = linear_classifier(network)
    if classifier is None:
        raise ValueError("the network has no linear classifier")
    head.copy_to(classifier)
    return network, replace(card, reads_stages=staged)


def fit_probe_head(state: TuneState, setup: TrainingSetup, title: str, compare: bool = False) -> FittedHead:
    """Fit a linear head to the features of the network of `setup`.

    With `compare`, also compare it with heads that read the last stages, by cross-validation.
    """
    data, settings = setup.data, setup.settings
    train, val = (torch.from_numpy(data.split_indices(name)) for name in ("train", "val"))
    all_labels, rows = torch.from_numpy(data.images.targets).long(), torch.arange(len(train))
    max_images = _max_probe_seconds(state) * state.precision.speed / max(state.image_seconds, 1e-9)
    if state.record.budget and len(train) > max_images:
        rows = stratified_sample(all_labels[train], int(max_images), settings.seed)
        state.console.say(f"note: the time allows features of {len(rows)} of the {len(train)} training images")
    indices = torch.cat([train[rows], val])
    network, card = setup.objective.deployable(), setup.card
    compare = compare and all_labels.ndim == 1
    staged = compare and bool(last_stage_poolings(network, card.backbone.image_size))
    start_time = time.perf_counter()
    with state.console.progress(title) as advance:
        features = compute_frozen_features(
            network, data, indices.numpy(), card.preprocessing, settings, advance, staged, state.precision.dtype
        )
    image_seconds = (time.perf_counter() - start_time) / max(len(indices), 1) * state.precision.speed
    labels, count = all_labels[indices], len(rows)
    last, groups = features[:, : classifier_in_features(network)], training_groups(data, rows)
    # Fits to few images multiply many small matrices, for which several threads are slower on a busy machine.
    with threadpool_limits(1 if count <= MAX_COMPARED else None):
        head = fit_head(last[:count], labels[:count], len(card.classes), settings.seed, groups=groups)
        start_time, result = time.perf_counter(), HeadComparison()
        # Without heads on the last stages, the comparison still gives cross-validated predictions.
        if staged or (compare and (not len(val) or settings.unlabelled)):
            result = compare_heads(
                last[:count],
                features[:count],
                labels[:count],
                len(card.classes),
                head.strength,
                settings.seed,
                heads=HEADS if staged else {},
                # Without validation images, the cross-validated predictions are the result of the run: use more images.
                max_images=MAX_COMPARISON_IMAGES if len(val) else MAX_COMPARED,
                groups=groups,
            )
        compare_seconds = time.perf_counter() - start_time
        best, best_inputs = (head, last) if result.head is None else (result.head, features)
        curve = None
        if result.held_out is not None and (settings.curve or not len(val)):
            curve = measure_learning_curve(
                best_inputs[:count], labels[:count], len(card.classes), best.strength, settings.seed, groups
            )
    score = best.cross_validated if result.held_out is None else float(result.held_out.is_correct.double().mean())
    losses: Sequence[float] = ()
    if len(val):
        score = score_head(best, best_inputs[count:], labels[count:])
        losses = calibrated_losses(Predictions(val, best.scores(best_inputs[count:]), labels[count:]))
    return FittedHead(head, features, staged, rows, score or 0.0, image_seconds, result, compare_seconds, curve, losses)


def training_groups(data: SplitImages, rows: Tensor) -> Tensor | None:
    """Return the `--group-by` groups of the training images at the indices `rows`; None if the run has no groups."""
    groups = data.split.groups
    return None if groups is None else torch.from_numpy(groups[data.split_indices("train")])[rows]


def classifier_in_features(network: nn.Module) -> int | None:
    """Return the number of input features of the network's linear classifier; None if there is no such classifier."""
    classifier = linear_classifier(network)
    return None if classifier is None else classifier.in_features
