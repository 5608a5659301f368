"""One backbone on one data set, by any of the protocols."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from paucal.data.dataset import SampleKey, ViewDataset, collate
from paucal.evaluation.protocols.correspondence import TOP, correspond
from paucal.evaluation.protocols.cross_validation import FOLDS, fit_by_folds, fit_probe_by_folds
from paucal.evaluation.protocols.extraction import Advance, Extraction, augmented_batches, extract
from paucal.evaluation.protocols.feature_reader import POOLED, FeatureKind, probe_kind
from paucal.evaluation.protocols.few_labels import PER_CLASS, REPEATS, few_label_curve
from paucal.evaluation.protocols.judged_data import PARTS, POOL, JudgedData
from paucal.evaluation.protocols.knn import HEADLINE, NEIGHBOURS, clamped, knn_scores
from paucal.evaluation.protocols.linear_probe import (
    PUBLISHED,
    Batches,
    ProbeSettings,
    cached_batches,
    fit_probe,
    for_images,
)
from paucal.evaluation.protocols.logistic import DEFAULT, Solver, fit_selected
from paucal.evaluation.protocols.subjects import Subject
from paucal.evaluation.protocols.views import Change, second_view
from paucal.metrics.measures import Average, Mean, MeanPerClass, Measure, hits, value_of
from paucal.metrics.named import TITLES, measure_of
from paucal.metrics.ranking import RocAuc
from paucal.types import UserError
from paucal.wording import percent

Protocol = Literal["knn", "linear", "logistic", "correspondence", "few-labels"]
PROTOCOLS: tuple[Protocol, ...] = ("knn", "linear", "logistic", "correspondence", "few-labels")
SEVERAL_CLASSES: frozenset[Protocol] = frozenset({"logistic", "correspondence"})  # what such images can be judged by
WIDE, TOP_5 = 5, "top-5"  # answers of the second accuracy, where there are more classes, and its name
Bar = Callable[[str], AbstractContextManager[Advance]]
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Line:
    """What a line of the table is about; the same for every model.

    Attributes:
        protocol: which.
        setting: of the protocol, such as "k = 20".
        score: what is measured.
        unit: "%" for shares, "px" for distances, of which less is better.
        headline: whether it is printed; all lines are stored.
    """

    protocol: Protocol
    setting: str
    score: str
    unit: Literal["%", "px"] = "%"
    headline: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a model reached on a line.

    Attributes:
        line: which.
        measure: the score of the test images, or of any resampled set of them.
        n_images: how many there are.
        note: what was chosen on validation images, or how repeats differ.
    """

    line: Line
    measure: Measure
    n_images: int
    note: str = ""


@dataclass(frozen=True)
class JudgeOptions:
    """How to judge.

    Attributes:
        features: of k-NN, logistic regression and few labels; the linear probe has the last four blocks unless
            `probe_features` says otherwise, as published.
        probe_features: of the linear probe; None for the published ones.
        extraction: how features are computed.
        solver: of logistic regression.
        probe: schedule of the linear probe.
        augment: whether the linear probe sees new augmented views in every epoch, as published, and not the features
            of the plain images.
        changes: second views of the correspondence.
        neighbours: values of k.
        seed: of few labels and of second views.
    """

    features: FeatureKind = POOLED
    probe_features: FeatureKind | None = None
    extraction: Extraction = field(default_factory=Extraction)
    solver: Solver = DEFAULT
    probe: ProbeSettings = PUBLISHED
    augment: bool = False
    changes: Sequence[Change] = ("mirror", "crop")
    neighbours: Sequence[int] = NEIGHBOURS
    seed: int = 0


def judge(
    subject: Subject, data: JudgedData, protocols: Sequence[Protocol], options: JudgeOptions, bar: Bar | None = None
) -> list[Outcome]:
    """Judge a backbone on a data set.

    Validation images choose lambda (logistic regression) and the learning rate (linear probe). Afterwards they are
    training images like the others. Where there are none, cross-validation within the training images
    chooses. Test images choose nothing.

    Args:
        subject: the backbone.
        data: images and their parts.
        protocols: which.
        options: how.
        bar: makes a progress bar from a title.

    Raises:
        UserError: a protocol does not suit the data, or the features are no finite numbers.
    """
    bar = bar or (lambda title: nullcontext(lambda done, total: None))
    if data.labels.ndim == 2 and set(protocols) - SEVERAL_CLASSES:
        raise UserError(
            f"the images of {data.name} have several classes each: judge them with --protocol logistic correspondence."
        )
    probe = options.probe_features or probe_kind(subject.backbone)
    kinds = [options.features] if set(protocols) & {"knn", "logistic", "few-labels"} else []
    kinds += [probe] if "linear" in protocols else []
    features: dict[FeatureKind, Tensor] = {}
    if kinds:
        with bar(f"features of {subject.name}") as advance:
            features = extract(subject, data.images, data.used, kinds, options.extraction, advance)
    outcomes: list[Outcome] = []
    for protocol in protocols:
        with bar(f"{protocol} of {subject.name}") as advance:
            if protocol == "correspondence":
                outcomes += _correspondence(subject, data, options, advance)
                continue
            kind = probe if protocol == "linear" else options.features
            parts = _parts(features[kind].to(subject.device), data)
            if protocol == "knn":
                outcomes += _knn(parts, data, options)
            elif protocol == "linear":
                outcomes += _linear(subject, parts, kind, data, options, advance)
            elif protocol == "logistic":
                outcomes += _logistic(parts, data, options)
            else:
                outcomes += _few(parts, data, options, advance)
    return outcomes


def _parts(features: Tensor, data: JudgedData) -> dict[str, Rows]:
    """Return features and labels of every part and of the pool; none of them is a copy."""
    labels = data.labels[torch.from_numpy(data.used)]
    return {part: (features[data.rows(part)], labels[data.rows(part)]) for part in (*PARTS, POOL)}


def _knn(parts: dict[str, Rows], data: JudgedData, options: JudgeOptions) -> list[Outcome]:
    (pool, labels), (test, truth) = parts[POOL], parts["test"]
    votes = knn_scores(pool, labels, test, data.n_classes, options.neighbours)
    asked = clamped(options.neighbours, len(pool))
    headline = min(asked, key=lambda k: abs(k - HEADLINE))
    plain = data.metric == "accuracy"  # where another metric is due, accuracy is stored and not shown
    outcomes = []
    for k, scores in votes.items():
        line = Line("knn", f"k = {k}", "top-1", headline=plain and k == headline)
        outcomes.append(Outcome(line, Mean(hits(scores, truth)), len(truth)))
        if data.n_classes > WIDE:
            line = Line("knn", f"k = {k}", TOP_5, headline=plain and k == headline)
            outcomes.append(Outcome(line, Mean(hits(scores, truth, WIDE)), len(truth)))
    if not plain:
        line = Line("knn", f"k = {headline}", TITLES[data.metric])
        outcomes.append(Outcome(line, measure_of(data.metric, votes[headline], truth), len(truth)))
    return outcomes


def _linear(
    subject: Subject,
    parts: dict[str, Rows],
    kind: FeatureKind,
    data: JudgedData,
    options: JudgeOptions,
    advance: Advance,
) -> list[Outcome]:
    schedule = for_images(options.probe, len(parts["train"][1]))

    def batches(part: str) -> Batches:
        features, labels = parts[part]
        if not options.augment:
            return cached_batches(features, labels, schedule)
        rows = data.positions(part), labels
        return augmented_batches(subject, data.images, rows, kind, schedule, options.extraction)

    val = parts["val"][0].float(), parts["val"][1]
    if len(val[1]):
        found = fit_probe(batches("train"), batches(POOL), val, data.n_classes, schedule, data.metric, advance)
    else:
        found = fit_probe_by_folds(parts["train"], batches("train"), data.n_classes, schedule, data.metric, advance)
    test, truth = parts["test"]
    scores = found.classifier.scores(test).cpu()
    views = "augmented views" if options.augment else "plain images"
    note = f"rate {found.rate:g} per 256 images{_chosen(parts)}; {kind}; {views}"
    return _of_classifier("linear", scores, truth, data, note)


def _logistic(parts: dict[str, Rows], data: JudgedData, options: JudgeOptions) -> list[Outcome]:
    if len(parts["val"][1]):
        found = fit_selected(
            parts["train"], parts["val"], data.n_classes, data.metric, options.solver, both=parts[POOL]
        )
    else:
        found = fit_by_folds(parts["train"], data.n_classes, data.metric, options.solver)
    test, truth = parts["test"]
    scores = found.classifier.scores(test).cpu()
    stopped = "" if found.classifier.converged else ", stopped at the limit of iterations"
    note = f"lambda {found.search.strength:.2g} after {found.fits} fits{_chosen(parts)}{stopped}"
    return _of_classifier("logistic", scores, truth, data, note)


def _of_classifier(
    protocol: Literal["linear", "logistic"], scores: Tensor, truth: Tensor, data: JudgedData, note: str
) -> list[Outcome]:
    """Return the data set's metric, which has chosen, and of more than five classes top-5, which has chosen nothing."""
    measure = measure_of(data.metric, scores, truth)
    outcomes = [Outcome(Line(protocol, "", TITLES[data.metric]), measure, len(truth), note)]
    if truth.ndim == 1 and data.n_classes > WIDE:
        line = Line(protocol, "", TOP_5, headline=data.metric == "accuracy")
        outcomes.append(Outcome(line, Mean(hits(scores, truth, WIDE)), len(truth), note))
    return outcomes


def _chosen(parts: dict[str, Rows]) -> str:
    """Return how a value was chosen, where that is not the usual way."""
    if len(parts["val"][1]):
        return ""
    return f" by {FOLDS}-fold cross-validation of the training images, as none are kept for validation"


def _few(parts: dict[str, Rows], data: JudgedData, options: JudgeOptions, advance: Advance) -> list[Outcome]:
    curve = few_label_curve(
        parts[POOL], parts["test"], data.n_classes, PER_CLASS, REPEATS, options.seed, options.solver, advance
    )
    outcomes = []
    for few in curve:
        setting, n_images = f"{few.per_class} per class", few.hits.shape[1]
        plain = data.metric == "accuracy"
        line = Line("few-labels", setting, "accuracy", headline=plain)
        outcomes.append(Outcome(line, Mean(few.hits.mean(0)), n_images, _spread(few.accuracies)))
        if not plain:
            truth = parts["test"][1]
            if data.metric == "roc_auc":
                due: list[Measure] = [RocAuc(torch.from_numpy(margins), truth) for margins in few.margins]
            else:
                due = [MeanPerClass(row, truth.numpy(), data.n_classes) for row in few.hits]
            values = np.array([value_of(measure, n_images) for measure in due])
            line = Line("few-labels", setting, TITLES[data.metric])
            outcomes.append(Outcome(line, Average(due), n_images, _spread(values)))
    return outcomes


def _spread(scores: NDArray[np.float64]) -> str:
    deviation = 100 * scores.std(ddof=1) if len(scores) > 1 else 0.0
    return f"{len(scores)} draws, standard deviation {deviation:.1f}"


def _correspondence(subject: Subject, data: JudgedData, options: JudgeOptions, advance: Advance) -> list[Outcome]:
    first, indices = subject.preprocessing.transform(), data.parts["test"]
    outcomes = []
    for number, change in enumerate(options.changes):
        views = [(first, 1), (second_view(change, first), 1)]
        dataset = ViewDataset(data.images, views, options.seed, labels=False, geometry=True)
        keys = [SampleKey(0, int(index)) for index in indices]
        size = options.extraction.batch_size
        batches = [keys[start : start + size] for start in range(0, len(keys), size)]
        loader = DataLoader(dataset, batch_sampler=batches, num_workers=options.extraction.workers, collate_fn=collate)
        before = number * len(indices)
        accuracy, distance = correspond(
            subject.backbone,
            loader,
            subject.device,
            TOP,
            lambda done, before=before: advance(before + done, len(indices) * len(options.changes)),
        )
        known = ~torch.isnan(accuracy)
        rows, columns = subject.backbone.grid
        note = f"{rows}x{columns} cells, by chance {percent(1 / (rows * columns))}"
        lines = Line("correspondence", change, "accuracy"), Line("correspondence", change, "distance error", "px")
        for line, values in zip(lines, (accuracy, distance), strict=True):
            outcomes.append(Outcome(line, Mean(values[known].numpy()), int(known.sum()), note))
    return outcomes
