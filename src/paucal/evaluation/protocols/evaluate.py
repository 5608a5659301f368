"""Evaluation of a frozen backbone on a data set with the published protocols."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.dataset import ViewDataset, collate
from paucal.data.loader import make_ordered_loader
from paucal.evaluation.protocols.classifier import FOLDS, LinearClassifier
from paucal.evaluation.protocols.correspondence import Change, SecondView, measure_correspondence
from paucal.evaluation.protocols.data import PARTS, POOL, EvaluationData
from paucal.evaluation.protocols.features import POOLED, Advance, Extraction, FeatureKind, extract, probe_kind
from paucal.evaluation.protocols.few_labels import few_label_curve
from paucal.evaluation.protocols.knn import NEIGHBOURS, PRINTED_K, clamp_neighbours, knn_scores
from paucal.evaluation.protocols.linear_probe import (
    PUBLISHED,
    Batches,
    ProbeSettings,
    augmented_batches,
    cached_batches,
    fit_probe,
    fit_probe_by_folds,
    limit_batch_size,
)
from paucal.evaluation.protocols.logistic import DEFAULT_SOLVER, SolverSettings, fit_by_folds, fit_selected
from paucal.metrics.measures import (
    METRIC_TITLES,
    Mean,
    Measure,
    hits,
    mean_of,
    mean_per_class,
    measure_of,
    roc_auc,
    value_of,
)
from paucal.models.named import FrozenBackbone
from paucal.types import UserError
from paucal.wording import percent

Protocol = Literal["knn", "linear", "logistic", "correspondence", "few-labels"]
PROTOCOLS: tuple[Protocol, ...] = ("knn", "linear", "logistic", "correspondence", "few-labels")
# Protocols that support images with several labels.
MULTI_LABEL: frozenset[Protocol] = frozenset({"logistic", "correspondence"})
TOP_5_RANK, TOP_5 = 5, "top-5"  # rank k and name of the top-k accuracy that is reported for more than 5 classes
Bar = Callable[[str], AbstractContextManager[Advance]]  # function that opens a progress bar with a title
Rows = tuple[Tensor, Tensor]  # (N, D) features, and (N,) or (N, K) labels


@dataclass(frozen=True)
class ScoreKey:
    """Key of a row in the table of scores."""

    protocol: Protocol
    setting: str  # setting of the protocol, such as "k = 20"
    score: str  # name of the score
    unit: Literal["%", "px"] = "%"  # "%" for scores from 0 to 1 (higher is better), "px" for distances in pixels
    headline: bool = True  # whether the row is printed; all rows are stored


@dataclass(frozen=True)
class Outcome:
    """A model's score in one row of the table of scores."""

    line: ScoreKey  # row of the table
    measure: Measure  # returns the score for weights of the test images, such as those of a bootstrap sample
    n_images: int  # number of test images
    note: str = ""  # selected hyperparameter, or standard deviation over repeats; "" if there is neither


@dataclass(frozen=True)
class ProtocolOptions:
    """Options of the protocols."""

    features: FeatureKind = POOLED  # features for the protocols k-NN, logistic regression and few labels
    probe_features: FeatureKind | None = None  # features for the linear probe; None for the published features
    extraction: Extraction = field(default_factory=Extraction)
    solver: SolverSettings = DEFAULT_SOLVER
    probe: ProbeSettings = PUBLISHED
    augment: bool = False  # whether the linear probe is trained on new augmented views in every epoch, as published
    changes: Sequence[Change] = ("mirror", "crop")  # second views for which the correspondence is measured
    neighbours: Sequence[int] = NEIGHBOURS  # values of k for k-NN
    seed: int = 0  # seed for drawing few labels and for the second views


def evaluate_backbone(
    frozen_backbone: FrozenBackbone,
    data: EvaluationData,
    protocols: Sequence[Protocol],
    options: ProtocolOptions,
    bar: Bar | None = None,
) -> list[Outcome]:
    """Evaluate a backbone on a data set; return the scores of each protocol.

    The penalty lambda of logistic regression and the learning rate of the linear probe are selected on the validation
    images, which are then added to the training images. If there are no validation images, these hyperparameters are
    selected by cross-validation within the training images. Test images are never used for selection.
    """
    bar = bar or (lambda title: nullcontext(lambda done, total: None))
    if data.labels.ndim == 2 and set(protocols) - MULTI_LABEL:
        raise UserError(
            f"images of {data.name} have several labels, which only the protocols logistic and correspondence support: "
            "give --protocol logistic correspondence."
        )
    probe = options.probe_features or probe_kind(frozen_backbone.backbone)
    kinds = [options.features] if set(protocols) & {"knn", "logistic", "few-labels"} else []
    kinds += [probe] if "linear" in protocols else []
    features: dict[FeatureKind, Tensor] = {}
    if kinds:
        with bar(f"features of {frozen_backbone.name}") as advance:
            features = extract(frozen_backbone, data.images, data.used, kinds, options.extraction, advance)
    outcomes: list[Outcome] = []
    for protocol in protocols:
        with bar(f"{protocol} of {frozen_backbone.name}") as advance:
            if protocol == "correspondence":
                outcomes += _evaluate_correspondence(frozen_backbone, data, options, advance)
                continue
            kind = probe if protocol == "linear" else options.features
            rows, labels = features[kind].to(frozen_backbone.device), data.labels[torch.from_numpy(data.used)]
            parts = {part: (rows[data.rows(part)], labels[data.rows(part)]) for part in (*PARTS, POOL)}
            if protocol == "knn":
                outcomes += _evaluate_knn(parts, data, options)
            elif protocol == "few-labels":
                outcomes += _evaluate_few_labels(parts, data, options, advance)
            else:
                if protocol == "linear":
                    classifier, note = _fit_linear(frozen_backbone, parts, kind, data, options, advance)
                else:
                    classifier, note = _fit_logistic(parts, data, options)
                outcomes += _evaluate_classifier(protocol, classifier, parts["test"], data, note)
    return outcomes


def _evaluate_knn(parts: dict[str, Rows], data: EvaluationData, options: ProtocolOptions) -> list[Outcome]:
    (pool, labels), (test, truth) = parts[POOL], parts["test"]
    votes = knn_scores(pool, labels, test, data.n_classes, options.neighbours)
    printed_k = min(clamp_neighbours(options.neighbours, len(pool)), key=lambda k: abs(k - PRINTED_K))
    prints_accuracy = data.metric == "accuracy"  # with another metric, accuracy is stored but not printed
    ranks = {"top-1": 1, TOP_5: TOP_5_RANK} if data.n_classes > TOP_5_RANK else {"top-1": 1}
    outcomes = []
    for k, scores in votes.items():
        for name, rank in ranks.items():
            line = ScoreKey("knn", f"k = {k}", name, headline=prints_accuracy and k == printed_k)
            outcomes.append(Outcome(line, Mean(hits(scores, truth, rank)), len(truth)))
    if not prints_accuracy:
        line = ScoreKey("knn", f"k = {printed_k}", METRIC_TITLES[data.metric])
        outcomes.append(Outcome(line, measure_of(data.metric, votes[printed_k], truth), len(truth)))
    return outcomes


# End of the note on a hyperparameter that was selected without validation images.
BY_FOLDS = f" by {FOLDS}-fold cross-validation of the training images, as there are no validation images"


def _fit_linear(
    frozen_backbone: FrozenBackbone,
    parts: dict[str, Rows],
    kind: FeatureKind,
    data: EvaluationData,
    options: ProtocolOptions,
    advance: Advance,
) -> tuple[LinearClassifier, str]:
    """Return the linear probe, and a note on its learning rate."""
    schedule = limit_batch_size(options.probe, len(parts["train"][1]))

    def batches(part: str) -> Batches:
        features, labels = parts[part]
        if not options.augment:
            return cached_batches(features, labels, schedule)
        rows = data.positions(part), labels
        return augmented_batches(frozen_backbone, data.images, rows, kind, schedule, options.extraction)

    val, how = (parts["val"][0].float(), parts["val"][1]), ""
    if len(val[1]):
        probe = fit_probe(batches("train"), batches(POOL), val, data.n_classes, schedule, data.metric, advance)
    else:
        how = BY_FOLDS
        probe = fit_probe_by_folds(parts["train"], batches("train"), data.n_classes, schedule, data.metric, advance)
    views = "augmented views" if options.augment else "unaugmented images"
    return probe.classifier, f"rate {probe.rate:g} per 256 images{how}; {kind}; {views}"


def _fit_logistic(
    parts: dict[str, Rows], data: EvaluationData, options: ProtocolOptions
) -> tuple[LinearClassifier, str]:
    """Return the logistic regression, and a note on its penalty."""
    train, val, metric, how = parts["train"], parts["val"], data.metric, ""
    if len(val[1]):
        fit = fit_selected(train, val, data.n_classes, metric, options.solver, both=parts[POOL])
    else:
        how = BY_FOLDS
        fit = fit_by_folds(train, data.n_classes, metric, options.solver)
    stopped = "" if fit.classifier.converged else ", stopped at the maximum number of iterations"
    return fit.classifier, f"lambda {fit.search.strength:.2g} after {fit.fits} fits{how}{stopped}"


def _evaluate_classifier(
    protocol: Protocol, classifier: LinearClassifier, test: Rows, data: EvaluationData, note: str
) -> list[Outcome]:
    scores, truth = classifier.scores(test[0]).cpu(), test[1]
    measure = measure_of(data.metric, scores, truth)
    outcomes = [Outcome(ScoreKey(protocol, "", METRIC_TITLES[data.metric]), measure, len(truth), note)]
    if truth.ndim == 1 and data.n_classes > TOP_5_RANK:
        line = ScoreKey(protocol, "", TOP_5, headline=data.metric == "accuracy")
        outcomes.append(Outcome(line, Mean(hits(scores, truth, TOP_5_RANK)), len(truth), note))
    return outcomes


def _evaluate_few_labels(
    parts: dict[str, Rows], data: EvaluationData, options: ProtocolOptions, advance: Advance
) -> list[Outcome]:
    (test, truth), prints_accuracy = parts["test"], data.metric == "accuracy"
    curve = few_label_curve(
        parts[POOL], (test, truth), data.n_classes, seed=options.seed, solver=options.solver, progress=advance
    )
    outcomes = []
    for point in curve:
        n_images = point.hits.shape[1]
        # For each score: name, whether its row is printed, mean over the draws as a measure, and values of the draws.
        scored: list[tuple[str, bool, Measure, NDArray[np.float64]]] = [
            ("accuracy", prints_accuracy, Mean(point.hits.mean(0)), point.hits.mean(1))
        ]
        if not prints_accuracy:
            if data.metric == "roc_auc":
                measures = [roc_auc(torch.from_numpy(margins), truth) for margins in point.margins]
            else:
                measures = [mean_per_class(draw_hits, truth.numpy(), data.n_classes) for draw_hits in point.hits]
            values = np.array([value_of(measure, n_images) for measure in measures])
            scored.append((METRIC_TITLES[data.metric], True, mean_of(measures), values))
        for name, headline, measure, values in scored:
            deviation = 100 * values.std(ddof=1) if len(values) > 1 else 0.0
            note = f"{len(values)} draws, standard deviation {deviation:.1f}"
            line = ScoreKey("few-labels", f"{point.per_class} per class", name, headline=headline)
            outcomes.append(Outcome(line, measure, n_images, note))
    return outcomes


def _evaluate_correspondence(
    frozen_backbone: FrozenBackbone, data: EvaluationData, options: ProtocolOptions, advance: Advance
) -> list[Outcome]:
    first, backbone = frozen_backbone.preprocessing.transform(), frozen_backbone.backbone
    indices, extraction = data.split_positions["test"], options.extraction
    rows, columns = backbone.grid
    note = f"{rows}x{columns} cells, by chance {percent(1 / (rows * columns))}"
    outcomes = []
    for number, change in enumerate(options.changes):
        views = [(first, 1), (SecondView(change, first), 1)]
        dataset = ViewDataset(data.images, views, options.seed, with_labels=False, with_geometry=True)
        loader = make_ordered_loader(dataset, indices, extraction.batch_size, collate, extraction.workers)

        def progress(done: int, n_before: int = number * len(indices)) -> None:
            advance(n_before + done, len(indices) * len(options.changes))

        accuracy, distance = measure_correspondence(backbone, loader, frozen_backbone.device, progress=progress)
        is_scored = ~torch.isnan(accuracy)
        accuracy_key = ScoreKey("correspondence", change, "accuracy")
        distance_key = ScoreKey("correspondence", change, "distance error", "px")
        for line, values in ((accuracy_key, accuracy), (distance_key, distance)):
            outcomes.append(Outcome(line, Mean(values[is_scored].numpy()), int(is_scored.sum()), note))
    return outcomes
