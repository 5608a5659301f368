"""The step of auto-tuning after the first model: fit a second head that also uses the `--unlabelled` images."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from paucal.data.checking.survey import image_digests
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.splits.split_csv import write_split
from paucal.evaluation.familiarity import fit_familiarity
from paucal.evaluation.predictions import Predictions, predict_in_order
from paucal.evaluation.seen_images import UNLABELLED_IMAGES
from paucal.models.trained import save_trained
from paucal.runner.images import compute_frozen_features, eval_loader
from paucal.runs.weights import MAX_WEIGHTS_BYTES, read_weights, save_weights
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.first_model import (
    classifier_in_features,
    copy_with_head,
    fit_probe_head,
    training_groups,
)
from paucal.tasks.classification.auto_tune.heads import HeadComparison, store_held_out_logits
from paucal.tasks.classification.auto_tune.probe import score_head
from paucal.tasks.classification.auto_tune.record import LOSSES_KEY, EvaluatedModel, calibrated_losses
from paucal.tasks.classification.auto_tune.resumed_features import FROZEN_FILE, FrozenOutputs, ResumableFeatureExtractor
from paucal.tasks.classification.auto_tune.state import (
    FittedHead,
    TuneState,
    cannot_evaluate_tuning,
    is_automatic_setting,
)
from paucal.tasks.classification.auto_tune.trials import presets_for
from paucal.tasks.classification.auto_tune.unlabelled_head import compare_unlabelled_heads, make_base_fit
from paucal.tasks.classification.frozen_views import max_activation_bytes
from paucal.tasks.classification.images import MAX_UNLABELLED, as_training_split, read_unlabelled
from paucal.types import UserError
from paucal.wording import counted, format_duration, percent

# Maximum fractions of the time budget for computing the features of the unlabelled images: if the network is tuned
# afterwards, if the network is tuned on fewer than FEW_LABELS labelled images, and if the network is not tuned. On the
# clothing data set with ten labelled images per class, 150 unlabelled images added 0.5 points of accuracy, 600 images
# 2.3 points and 2,000 images 4.5 points, while tuning for four minutes on one core added 0 points. With forty labelled
# images per class, tuning adds more than unlabelled images do.
TUNED_FRACTION, FEW_LABELS_FRACTION, UNTUNED_FRACTION = 0.05, 0.4, 0.7
# Before tuning, computing these features also takes at most this fraction of the remaining time. On a slow core with a
# large test set, a limit of 0.4 of the time budget left no time for tuning, which cost 3 points of accuracy. A limit of
# half of the remaining time left time for at most three epochs.
MAX_LEFT_FRACTION = 1 / 3
FEW_LABELS = 300
# With this many labelled images per class or more, on average, unlabelled images are read only if the time is not
# limited or the network is not tuned. On CIFAR-10, unlabelled images changed the accuracy of the first model by -0.4
# points with 100 labelled images per class and by +0.1 points with 250, and took time from tuning
# (docs/lab/2026-11-26-unlabelled.md).
MANY_LABELS_PER_CLASS = 100
# Maximum fractions of the time budget for computing the features of the unlabelled images again with the tuned network:
# in general, and with fewer than FEW_LABELS labelled images. A second limit is half of the time left.
REREAD_FRACTION, FEW_LABELS_REREAD_FRACTION = 0.05, 0.2
MIN_IMAGES = 50  # minimum number of unlabelled images; fewer images have no effect on the head
MIN_HELD_OUT = 20  # with fewer validation images, a fifth of the training images is held out to measure distances
FEATURES_FILE = "unlabelled.safetensors"  # features, removed at the end of this step


def learn_from_unlabelled(state: TuneState) -> None:
    """Fit a second head that also uses the `--unlabelled` images; keep this head if its cross-validation is better."""
    settings, start_time = state.setup.settings, time.monotonic()
    if settings.unlabelled is None or state.record.unlabelled is not None:
        return
    first = state.first_model or fit_probe_head(state, state.setup, "features of the first model again", compare=True)
    images, features = state.setup.data.images.select(np.empty(0, dtype=np.int64)), first.features[:0]
    frozen: FrozenOutputs | None = None
    reason = "too few labelled images to tell whether images without labels help"
    if first.comparison.held_out is not None:
        try:
            images, features, frozen = _select_images(state, first)
            reason = f"{counted(len(images), 'usable image')} without labels: too few to learn from"
        except UserError as problem:  # a note is enough: the run continues with the labelled images
            reason = f"--unlabelled: {str(problem).removeprefix('--unlabelled: ')}"
    details = {"images": len(images), "kept": False}

    if len(images) < MIN_IMAGES:
        state.console.say(f"note: {reason}")
        _save_step(state, 0.0, start_time, {**details, "why": reason})
        return
    train = torch.from_numpy(state.setup.data.split_indices("train"))[first.rows]
    labels = torch.from_numpy(state.setup.data.images.targets).long()[train]
    with threadpool_limits(1), state.console.progress("learning from images without labels"):
        count, labelled = len(state.setup.card.classes), first.features[: first.n_images]
        base, groups = make_base_fit(first.comparison, first.head, count), training_groups(state.setup.data, first.rows)
        result = compare_unlabelled_heads(labelled, labels, count, features, base, settings.seed, groups)
    details |= {
        "head": result.name,
        "brier_scores": dict(result.losses),
        "lead": result.lead,
        "error": result.lead_error,
    }
    score = 0.0
    if result.head is not None:
        score, losses = _save_first_model(state, first, result, images)
        details |= {"kept": True, "read_again": _count_images_to_reread(state, len(images)), LOSSES_KEY: losses}
        details |= _store_frozen_outputs(state, frozen)
    _save_step(state, score, start_time, details)
    text = f"{counted(len(images), 'image')} without labels"
    lead = f"a lead of {result.lead:.3f} ± {result.lead_error:.3f} in cross-validated Brier score"
    if result.head is None:
        state.console.say(f"{text} bring no significant gain ({lead}): the first model is kept")
        return
    held_out = "validation images" if len(state.setup.data.split_indices("val")) else "held-out training images"
    score_text = state.setup.data.primary_metric.format_score(score, held_out)
    state.console.say(f"{text} are kept ({lead}): {score_text}, {percent(first.score)} without these images")
    if n_reread := details.get("resumed", details["read_again"]):
        seconds = format_duration(n_reread * details.get("resume_seconds", state.image_seconds))
        state.console.say(f"after tuning, {n_reread} of these images are read again, which takes about {seconds}")


def _save_step(state: TuneState, score: float, start_time: float, details: Mapping[str, Any]) -> None:
    state.save(unlabelled=EvaluatedModel("images without labels", score, time.monotonic() - start_time, details))
    (state.run.path / FEATURES_FILE).unlink(missing_ok=True)


def _select_images(state: TuneState, first: FittedHead) -> tuple[ImageSet, Tensor, FrozenOutputs | None]:
    """Return the unlabelled images that are similar to the training images, their (U, D) features and frozen outputs.

    The frozen outputs are those of the stages that tuning will leave frozen; None if these are not needed or stored.
    """
    setup, console, max_images = state.setup, state.console, MAX_UNLABELLED
    if state.record.budget and _is_tuned(setup) and has_many_labels(setup):
        raise UserError(
            f"the images without labels are not read: with {MANY_LABELS_PER_CLASS} or more labelled images per class "
            "on average, they have not made a tuned model better, and reading them takes time from tuning; to use them "
            "for a linear head, give --epochs 0 instead of --time"
        )
    if state.record.budget:
        max_left = state.seconds_left() * (MAX_LEFT_FRACTION if _is_tuned(setup) else 1)
        seconds = min(max_time_fraction(setup) * state.record.budget, max_left)
        max_images = int(seconds * state.precision.speed / max(state.image_seconds, 1e-9))
    path = state.run.path / FEATURES_FILE
    cached = read_weights(path) if path.is_file() else {}
    # Keep the limit with which stored features were computed, although the time left has changed. Files of earlier
    # versions do not contain the limit.
    max_images = int(cached.get("max_images", max_images))
    if max_images < MIN_IMAGES:
        raise UserError("there is no time left for the images without labels; give a longer --time")
    images = read_unlabelled(setup.settings, setup.data, max_images, console)
    seconds = state.image_seconds / state.precision.speed * len(images)
    console.say(f"{counted(len(images), 'image')} without labels: their features take about {format_duration(seconds)}")
    if not len(images):
        return images, first.features[:0], None
    if cached and cached["features"].shape == (len(images), first.features.shape[1]):
        features, frozen = cached["features"], FrozenOutputs.from_tensors(cached) if "activations" in cached else None
    else:
        features, frozen = _compute_features(state, first, images)
        tensors = {} if frozen is None else frozen.to_tensors()
        save_weights(path, {"features": features, "max_images": torch.tensor(max_images), **tensors})
    is_similar = _in_distribution_mask(first, features, classifier_in_features(setup.objective.deployable()))
    if not is_similar.all():
        n_unlike = int((~is_similar).sum())
        verb = "is" if n_unlike == 1 else "are"
        count = counted(n_unlike, "image")
        console.say(f"left out: {count} without labels that {verb} not like the training images")
        frozen = None if frozen is None else frozen.select(is_similar)
    return images.select(np.flatnonzero(is_similar.numpy())), features[is_similar], frozen


def _count_images_to_reread(state: TuneState, n_images: int, image_seconds: float | None = None) -> int:
    """Return how many of the `n_images` unlabelled images the tuned network reads again, to refit heads.

    `image_seconds` are the seconds per image; None for a forward pass of the whole network.
    """
    if not _is_tuned(state.setup):
        return 0
    if not state.record.budget:
        return n_images
    fraction = FEW_LABELS_REREAD_FRACTION if has_few_labels(state.setup) else REREAD_FRACTION
    seconds = min(fraction * state.record.budget, state.seconds_left() / 2)
    image_seconds = state.image_seconds if image_seconds is None else image_seconds
    return min(n_images, max(0, int(seconds / max(image_seconds, 1e-9))))


def _store_frozen_outputs(state: TuneState, frozen: FrozenOutputs | None) -> dict[str, Any]:
    """Store the outputs of the frozen stages for the images that the tuned network will read again; return details."""
    n_stored = 0 if frozen is None else _count_images_to_reread(state, len(frozen.activations), frozen.seconds)
    if frozen is None or not n_stored:
        return {}
    rows = torch.from_numpy(evenly_spaced(len(frozen.activations), n_stored))
    save_weights(state.run.path / FROZEN_FILE, frozen.select(rows).to_tensors())
    return {
        "resumed": n_stored,
        "resume_seconds": frozen.seconds,
        "frozen_stages": _count_frozen_stages(state.setup),
        "image_size": list(state.setup.card.preprocessing.image_size),
    }


def _is_tuned(setup: TrainingSetup) -> bool:
    return setup.settings.epochs != 0 and not cannot_evaluate_tuning(setup)


def _count_frozen_stages(setup: TrainingSetup) -> int:
    """Return the number of stages that the first tuning preset leaves frozen, or the number given by the user."""
    freeze = setup.settings.freeze
    if is_automatic_setting(setup, "freeze"):
        freeze = presets_for(setup.objective.deployable())[0].settings.get("freeze")
    return freeze if isinstance(freeze, int) and setup.settings.lora_rank is None else 0


def has_few_labels(setup: TrainingSetup) -> bool:
    """Return whether there are so few labelled images that unlabelled images add more than tuning does."""
    return len(setup.data.split_indices("train")) < FEW_LABELS


def has_many_labels(setup: TrainingSetup) -> bool:
    """Return whether there are so many labelled images that unlabelled images add nothing to a tuned model."""
    return len(setup.data.split_indices("train")) >= MANY_LABELS_PER_CLASS * len(setup.card.classes)


def max_time_fraction(setup: TrainingSetup) -> float:
    """Return the fraction of the time budget that may be spent on computing the features of the unlabelled images."""
    if not _is_tuned(setup):
        return UNTUNED_FRACTION
    return FEW_LABELS_FRACTION if has_few_labels(setup) else TUNED_FRACTION


def _compute_features(state: TuneState, first: FittedHead, images: ImageSet) -> tuple[Tensor, FrozenOutputs | None]:
    setup, data, rows = state.setup, as_training_split(images), np.arange(len(images))
    network, preprocess, dtype = setup.objective.deployable(), setup.card.preprocessing, state.precision.dtype
    resumable, frozen, n_frozen = None, None, _count_frozen_stages(setup)
    if n_frozen and _is_tuned(setup) and len(setup.data.split_indices("val")) and setup.settings.processes == 1:
        # Half of each limit, since selecting images makes a second copy, and the weights file also holds the features.
        max_bytes = min(max_activation_bytes(state.run.path), MAX_WEIGHTS_BYTES) / 2
        network = network.to(setup.settings.device)
        with suppress(UserError):  # the network cannot continue after these stages
            resumable = ResumableFeatureExtractor(
                network, preprocess.image_size, first.staged, n_frozen, len(images), max_bytes
            )
    with state.console.progress("features of images without labels") as advance:
        if resumable is None:
            features = compute_frozen_features(
                network, data, rows, preprocess, setup.settings, advance, first.staged, dtype
            )
        else:
            with closing(resumable):
                loader = eval_loader(data, rows, preprocess, setup.settings)
                features = predict_in_order(resumable, loader, rows, setup.settings.device, advance, dtype)
                frozen = resumable.get_stored_outputs(state.precision.speed)
    return features, frozen


def _in_distribution_mask(first: FittedHead, features: Tensor, width: int | None) -> Tensor:
    """Return (U,) booleans: whether an image is as close to the training images as held-out images are.

    Distances are measured in the first `width` features; in all features if `width` is None.
    """
    last, count = first.features[:, :width], first.n_images
    train, held_out = last[:count], last[count:]
    if len(held_out) < MIN_HELD_OUT:
        fifth = torch.arange(count) % 5 == 0
        train, held_out = last[:count][~fifth], last[:count][fifth]
    familiarity = fit_familiarity(train, held_out)
    return familiarity.distances(features[:, :width]) <= familiarity.limit


def _save_first_model(
    state: TuneState, first: FittedHead, comparison: HeadComparison, images: ImageSet
) -> tuple[float, Sequence[float]]:
    """Save the network with the new head as the first model; return the head's score and validation losses."""
    setup, head, held_out = state.setup, comparison.head, comparison.held_out
    assert head is not None
    assert held_out is not None
    save_trained(state.run, *copy_with_head(setup.objective.deployable(), setup.card, head, first.staged))
    # List the images, so that an evaluation can detect that the run learned from them.
    write_split(state.run.path / UNLABELLED_IMAGES, images, as_training_split(images).split, image_digests(images))
    val = torch.from_numpy(setup.data.split_indices("val"))
    if not len(val):
        store_held_out_logits(state.run, held_out, first.rows)
        return float(held_out.is_correct.double().mean()), ()
    features, labels = first.features[first.n_images :], torch.from_numpy(setup.data.images.labels).long()[val]
    return score_head(head, features, labels), calibrated_losses(Predictions(val, head.scores(features), labels))
