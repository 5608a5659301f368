"""One backbone on one data set, by any of the protocols."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from paucal.data.dataset import SampleKey, ViewDataset, collate
from paucal.evaluation.protocols.correspondence import TOP, correspond
from paucal.evaluation.protocols.extraction import Advance, Extraction, augmented_batches, extract
from paucal.evaluation.protocols.feature_reader import POOLED, FeatureKind, probe_kind
from paucal.evaluation.protocols.few_labels import PER_CLASS, REPEATS, few_label_curve
from paucal.evaluation.protocols.judged_data import PARTS, JudgedData
from paucal.evaluation.protocols.knn import HEADLINE, NEIGHBOURS, clamped, knn_scores
from paucal.evaluation.protocols.linear_probe import PUBLISHED, ProbeSettings, cached_batches, fit_probe, for_images
from paucal.evaluation.protocols.logistic import DEFAULT, Solver, fit_selected
from paucal.evaluation.protocols.metrics import TITLES, Mean, Measure, hits, measure_of
from paucal.evaluation.protocols.subjects import Subject
from paucal.evaluation.protocols.views import Change, second_view
from paucal.types import UserError

Protocol = Literal["knn", "linear", "logistic", "correspondence", "few-labels"]
PROTOCOLS: tuple[Protocol, ...] = ("knn", "linear", "logistic", "correspondence", "few-labels")
SEVERAL_CLASSES: frozenset[Protocol] = frozenset({"logistic", "correspondence"})  # what such images can be judged by
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
    training images for k-NN and logistic regression. Test images choose nothing.

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
    """Return features and labels of every part, and of training and validation images together."""
    rows = {part: torch.from_numpy(np.searchsorted(data.used, data.parts[part])) for part in PARTS}
    parts = {part: (features[rows[part]], data.labels[torch.from_numpy(data.parts[part])]) for part in PARTS}
    pool = torch.cat([parts["train"][0], parts["val"][0]]), torch.cat([parts["train"][1], parts["val"][1]])
    return {**parts, "pool": pool}


def _knn(parts: dict[str, Rows], data: JudgedData, options: JudgeOptions) -> list[Outcome]:
    (pool, labels), (test, truth) = parts["pool"], parts["test"]
    votes = knn_scores(pool, labels, test, data.n_classes, options.neighbours)
    asked = clamped(options.neighbours, len(pool))
    headline = min(asked, key=lambda k: abs(k - HEADLINE))
    outcomes = []
    for k, scores in votes.items():
        line = Line("knn", f"k = {k}", "top-1", headline=k == headline)
        outcomes.append(Outcome(line, Mean(hits(scores, truth)), len(truth)))
        if data.n_classes > 5:
            line = Line("knn", f"k = {k}", "top-5", headline=k == headline)
            outcomes.append(Outcome(line, Mean(hits(scores, truth, 5)), len(truth)))
    if data.metric == "mean_per_class":
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
    features, labels = parts["train"]
    schedule = for_images(options.probe, len(labels))
    batches = cached_batches(features, labels, schedule)
    if options.augment:
        rows = data.parts["train"], labels
        batches = augmented_batches(subject, data.images, rows, kind, schedule, options.extraction)
    val = parts["val"][0].float(), parts["val"][1]
    found = fit_probe(batches, val, data.n_classes, schedule, data.metric, advance)
    test, truth = parts["test"]
    scores = found.classifier.scores(test).cpu()
    views = "augmented views" if options.augment else "plain images"
    note = f"rate {found.rate:g} per 256 images; {kind}; {views}"
    return [Outcome(Line("linear", "", TITLES[data.metric]), measure_of(data.metric, scores, truth), len(truth), note)]


def _logistic(parts: dict[str, Rows], data: JudgedData, options: JudgeOptions) -> list[Outcome]:
    found = fit_selected(parts["train"], parts["val"], data.n_classes, data.metric, options.solver)
    test, truth = parts["test"]
    scores = found.classifier.scores(test).cpu()
    stopped = "" if found.classifier.converged else ", stopped at the limit of iterations"
    note = f"lambda {found.search.strength:.2g} after {found.fits} fits{stopped}"
    return [
        Outcome(Line("logistic", "", TITLES[data.metric]), measure_of(data.metric, scores, truth), len(truth), note)
    ]


def _few(parts: dict[str, Rows], data: JudgedData, options: JudgeOptions, advance: Advance) -> list[Outcome]:
    curve = few_label_curve(
        parts["pool"], parts["test"], data.n_classes, PER_CLASS, REPEATS, options.seed, options.solver, advance
    )
    outcomes = []
    for few in curve:
        spread = 100 * few.accuracies.std(ddof=1) if len(few.accuracies) > 1 else 0.0
        note = f"{len(few.accuracies)} draws, standard deviation {spread:.1f}"
        line = Line("few-labels", f"{few.per_class} per class", "accuracy")
        outcomes.append(Outcome(line, Mean(few.hits.mean(0)), few.hits.shape[1], note))
    return outcomes


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
        note = f"{rows}x{columns} cells, by chance {100 / (rows * columns):.1f} %"
        lines = Line("correspondence", change, "accuracy"), Line("correspondence", change, "distance error", "px")
        for line, values in zip(lines, (accuracy, distance), strict=True):
            outcomes.append(Outcome(line, Mean(values[known].numpy()), int(known.sum()), note))
    return outcomes
