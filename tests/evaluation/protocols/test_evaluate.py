"""Protocols on whole data sets: what they select with, what they report, and how models are compared."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from paucal.backbones import BackboneSpec
from paucal.data.images import ImageSet
from paucal.data.named.table import NAMED
from paucal.data.stores import ArrayStore
from paucal.evaluation.protocols import data as voc
from paucal.evaluation.protocols import evaluate as module
from paucal.evaluation.protocols.classifier import LinearClassifier
from paucal.evaluation.protocols.data import TABLE9, evaluation_data, limit_split_sizes, split_standalone_set
from paucal.evaluation.protocols.evaluate import PROTOCOLS, Outcome, ProtocolOptions, ScoreKey, evaluate_backbone
from paucal.evaluation.protocols.linear_probe import ProbeSettings
from paucal.evaluation.protocols.table import ProtocolRow, averages, compare, tally
from paucal.metrics.intervals import Bootstrap, Score
from paucal.metrics.measures import Mean, mean_of, value_of
from paucal.models.named import FrozenBackbone, random_backbone
from paucal.models.preprocessing import Preprocessing
from paucal.types import UserError

SPEC = BackboneSpec("vit_mini", 0, image_size=(16, 16), arguments={"depth": 1, "embed_dim": 32})
PREPROCESSING = Preprocessing((16, 16), 1.0, "bicubic", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
OPTIONS = ProtocolOptions(probe=ProbeSettings(epochs=3))
DRAWS = Bootstrap(draws=100)


def subject(name="toy", seed=0):
    return FrozenBackbone(name, "random", SPEC, random_backbone(SPEC, seed), PREPROCESSING)


def shades(each=(30, 8, 12), classes=3, name="toy"):
    """Noise around one grey level per class, with declared parts."""
    generator = np.random.default_rng(0)
    labels = np.concatenate([np.arange(n * classes) % classes for n in each])
    grey = 50 + 60 * labels[:, None, None, None]
    pixels = generator.normal(grey, 25, (len(labels), 16, 16, 3)).clip(0, 255).astype(np.uint8)
    declared = [part for part, n in zip(("train", "val", "test"), each, strict=True) for _ in range(n * classes)]
    names = tuple(f"class{k}" for k in range(classes))
    return ImageSet(name, name, names, [str(i) for i in range(len(labels))], labels, declared, ArrayStore(pixels))


def data_of(images, metric=None):
    return evaluation_data(images, split_standalone_set(images, 0, None, None), metric)


def test_judge__every_protocol_scores_the_test_images_above_chance():
    data = data_of(shades())
    outcomes = evaluate_backbone(subject(), data, PROTOCOLS, OPTIONS)
    assert {outcome.line.protocol for outcome in outcomes} == set(PROTOCOLS)
    assert all(outcome.n_images == 36 for outcome in outcomes)
    scores = {(o.line.protocol, o.line.setting, o.line.score): value_of(o.measure, 36) for o in outcomes}
    assert scores["knn", "k = 20", "top-1"] > 0.8
    assert scores["logistic", "", "accuracy"] > 0.8
    assert scores["few-labels", "10 per class", "accuracy"] > 0.8
    assert ("knn", "k = 114", "top-1") in scores  # 200 became all there are
    headlines = {(o.line.protocol, o.line.setting) for o in outcomes if o.line.headline}
    assert ("knn", "k = 20") in headlines
    assert ("knn", "k = 10") not in headlines


def test_judge__without_validation_images_chooses_by_folds_of_the_training_images():
    images = shades(each=(30, 0, 12))
    data = evaluation_data(images, split_standalone_set(images, 0, 0.0, None))
    assert data.counts() == {"train": 90, "val": 0, "test": 36}
    outcomes = evaluate_backbone(subject(), data, ["linear", "logistic", "knn"], OPTIONS)
    linear, logistic = (outcome for outcome in outcomes if outcome.line.protocol in ("linear", "logistic"))
    for outcome in (linear, logistic):
        assert "by 5-fold cross-validation of the training images, as there are no validation images" in outcome.note
        assert value_of(outcome.measure, 36) > 0.6
    with_val = evaluate_backbone(subject(), data_of(shades()), ["logistic"], OPTIONS)
    assert "cross-validation" not in with_val[0].note


def test_judge__test_images_choose_nothing(monkeypatch):
    data = data_of(shades())
    chosen = {}
    for name, of in (("same", data.labels), ("shuffled", data.labels.clone())):
        if name == "shuffled":
            rows = torch.from_numpy(data.split_positions["test"])
            of[rows] = of[rows].flip(0)
        outcomes = evaluate_backbone(subject(), replace(data, labels=of), ["linear", "logistic"], OPTIONS)
        chosen[name] = [outcome.note for outcome in outcomes]
    assert chosen["same"] == chosen["shuffled"]
    assert "rate" in chosen["same"][0]
    assert "lambda" in chosen["same"][1]


def test_judge__validation_images_choose_and_then_train(monkeypatch):
    seen = {}

    def note(name, function):
        def run(*arguments, **keywords):
            seen.setdefault(name, []).append(arguments[0])
            return function(*arguments, **keywords)

        return run

    monkeypatch.setattr(module, "knn_scores", note("knn", module.knn_scores))
    monkeypatch.setattr(module, "cached_batches", note("linear", module.cached_batches))
    evaluate_backbone(subject(), data_of(shades()), ["knn", "linear"], OPTIONS)
    assert [len(features) for features in seen["knn"]] == [90 + 24]
    assert [len(features) for features in seen["linear"]] == [90, 90 + 24]


@pytest.mark.parametrize("augment", [False, True])
def test_judge__the_probe_is_trained_again_with_the_validation_images(augment, monkeypatch):
    data, seen = data_of(shades((9, 4, 5))), []
    original = module.fit_probe

    def note(train, both, *others):
        seen.extend(sum(len(labels) for _, labels in batches(0)) for batches in (train, both))
        return original(train, both, *others)

    monkeypatch.setattr(module, "fit_probe", note)
    (found,) = evaluate_backbone(subject(), data, ["linear"], replace(OPTIONS, augment=augment))
    assert seen == [27, 27 + 12]
    assert found.n_images == 15


def test_judge__holds_the_features_once(monkeypatch):
    """Train, val, test and the pool are views of the tensor that was extracted."""
    extracted, seen = [], {}

    def note(name):
        function = getattr(module, name)

        def run(*arguments, **keywords):
            found = function(*arguments, **keywords)
            tensors = [value for value in pytree.tree_leaves((arguments, keywords)) if isinstance(value, torch.Tensor)]
            seen[name] = {t.untyped_storage().data_ptr() for t in tensors if t.is_floating_point() and t.ndim == 2}
            if name == "extract":
                extracted.extend(value.untyped_storage().data_ptr() for value in found.values())
            return found

        monkeypatch.setattr(module, name, run)

    readers = ("knn_scores", "cached_batches", "fit_selected", "few_label_curve")
    for name in ("extract", *readers):
        note(name)
    evaluate_backbone(subject(), data_of(shades()), ["knn", "linear", "logistic", "few-labels"], OPTIONS)
    assert len(extracted) == 2
    assert all(seen[name] and seen[name] <= set(extracted) for name in readers)


def test_judge__augmented_probe_sees_views_that_change(monkeypatch):
    plain = evaluate_backbone(subject(), data_of(shades((8, 2, 3))), ["linear"], OPTIONS)
    augmented = evaluate_backbone(subject(), data_of(shades((8, 2, 3))), ["linear"], replace(OPTIONS, augment=True))
    assert "unaugmented images" in plain[0].note
    assert "augmented views" in augmented[0].note


def test_metrics__are_those_of_table_9_by_name():
    images = shades(name="pets")
    lines = [outcome.line for outcome in evaluate_backbone(subject(), data_of(images), ["knn", "logistic"], OPTIONS)]
    assert ("logistic", "mean per class") in {(line.protocol, line.score) for line in lines}
    assert ("knn", "mean per class") in {(line.protocol, line.score) for line in lines}
    two = data_of(shades(classes=2), "roc_auc")
    found = evaluate_backbone(subject(), two, ["logistic"], OPTIONS)[0]
    assert found.line.score == "ROC-AUC"
    assert value_of(found.measure, found.n_images) > 0.9
    with pytest.raises(UserError, match="--metric roc_auc is not defined for toy, which has 3 classes"):
        data_of(shades(), "roc_auc")


@pytest.mark.parametrize(
    ("name", "classes", "score"), [("hateful_memes", 2, "ROC-AUC"), ("pets", 3, "mean per class"), ("toy", 3, "")]
)
def test_metrics__that_are_due_are_shown_and_accuracy_only_stored(name, classes, score):
    every = ["knn", "linear", "logistic", "few-labels"]
    found = evaluate_backbone(subject(), data_of(shades((9, 4, 5), classes, name)), every, OPTIONS)
    lines = [one.line for one in found]
    shown = {
        protocol: {line.score for line in lines if line.headline and line.protocol == protocol} for protocol in every
    }
    if score:
        assert shown == {protocol: {score} for protocol in every}
        assert {line.score for line in lines if not line.headline} == {"top-1", "accuracy"}
    else:
        assert all(scores in ({"top-1"}, {"accuracy"}) for scores in shown.values())


@pytest.mark.parametrize("augment", [False, True])
def test_top_5__stands_beside_accuracy_where_there_are_more_than_five_classes(augment, monkeypatch):
    seen = {}
    original = LinearClassifier.scores

    def note(classifier, features):
        seen[len(features)] = original(classifier, features)  # of the test images last
        return seen[len(features)]

    monkeypatch.setattr(LinearClassifier, "scores", note)
    data = data_of(shades((9, 4, 5), 7))
    truth = data.labels[torch.from_numpy(data.split_positions["test"])]
    for protocol in ("linear", "logistic"):
        found = evaluate_backbone(subject(), data, [protocol], replace(OPTIONS, augment=augment))
        assert [(one.line.score, one.line.headline) for one in found] == [("accuracy", True), ("top-5", True)]
        five = seen[35].topk(5).indices
        assert value_of(found[1].measure, 35) == pytest.approx((five == truth[:, None]).any(1).double().mean().item())
        assert value_of(found[0].measure, 35) < value_of(found[1].measure, 35)
        assert found[0].note == found[1].note
    assert [
        one.line.score for one in evaluate_backbone(subject(), data_of(shades((9, 4, 5), 5)), ["linear"], OPTIONS)
    ] == ["accuracy"]


def test_top_5__is_only_stored_where_another_metric_is_due():
    due = evaluate_backbone(subject(), data_of(shades((9, 4, 5), 7, "pets")), ["linear", "logistic"], OPTIONS)
    assert [(one.line.score, one.line.headline) for one in due] == [("mean per class", True), ("top-5", False)] * 2


def test_metrics__of_few_labels_are_the_mean_over_draws(monkeypatch):
    draws = []
    monkeypatch.setattr(module, "mean_of", lambda measures: draws.append(measures) or mean_of(measures))
    data = data_of(shades((9, 4, 5), 2, "hateful_memes"))
    found = evaluate_backbone(subject(), data, ["few-labels"], OPTIONS)
    auc = next(one for one in found if one.line.score == "ROC-AUC")
    assert len(draws[0]) == 5
    assert value_of(auc.measure, 10) == pytest.approx(np.mean([value_of(one, 10) for one in draws[0]]))
    assert "5 draws" in auc.note


def test_table9__has_the_papers_eighteen_sets():
    assert len(TABLE9) == 18
    metrics = [entry.metric for entry in TABLE9.values()]
    assert (metrics.count("mean_per_class"), metrics.count("map11"), metrics.count("roc_auc")) == (4, 1, 1)
    assert sum(entry.test for entry in TABLE9.values()) == 170_478
    assert set(TABLE9) - set(NAMED) == {voc.VOC_NAME}


def test_parts__without_a_test_part_need_consent():
    images = shades()
    bare = replace(images, declared_splits=["train"] * len(images))
    with pytest.raises(UserError, match="toy has no test split: give a folder with train and test, or draw one"):
        split_standalone_set(bare, 0, None, None)
    split = split_standalone_set(bare, 0, None, 0.2)
    assert split.counts()["test"] == 30


def per_class_of(data, part):
    return torch.bincount(data.labels[torch.from_numpy(data.split_positions[part])], minlength=data.n_classes).tolist()


def test_parts__of_a_published_number_per_class_are_drawn_by_the_seed():
    images = shades((50, 0, 0))
    published = replace(images, declared_splits=[""] * 150, hints=replace(images.hints, train_per_class=30))
    data = evaluation_data(published, split_standalone_set(published, 3, None, None))
    assert [per_class_of(data, part) for part in ("train", "val", "test")] == [[27] * 3, [3] * 3, [20] * 3]
    assert data.split_description == (
        "30 training images per class, drawn with seed 3; all others are test images; 9 of the training images "
        "are used for validation"
    )
    again, other = (split_standalone_set(published, seed, None, None) for seed in (3, 4))
    assert (again.parts == split_standalone_set(published, 3, None, None).parts).all()
    assert (other.indices("test").tolist()) != again.indices("test").tolist()
    whole = split_standalone_set(published, 3, 0.0, None)
    assert whole.counts() == {"train": 90, "val": 0, "test": 60, "unused": 0}
    assert whole.indices("test").tolist() == again.indices("test").tolist()
    asked = split_standalone_set(published, 3, None, 0.2)  # what is asked for counts
    assert asked.counts()["test"] == 30


def test_parts__that_are_published_are_asked_for_where_they_are_not_there():
    images = shades((20, 0, 0))
    bare = replace(
        images, declared_splits=[""] * 60, hints=replace(images.hints, official_split_advice="put the list into toy")
    )
    with pytest.raises(UserError, match="toy has no test split: put the list into toy, or draw one with"):
        split_standalone_set(bare, 0, None, None)


def test_data__of_one_class_is_refused():
    images = shades(classes=1)
    with pytest.raises(UserError, match="the training images of toy have 1 class,"):
        data_of(images)


def test_limit__keeps_classes_equal_and_is_the_same_again():
    data = limit_split_sizes(data_of(shades()), 10, 0)
    assert data.counts() == {"train": 10, "val": 10, "test": 10}
    assert sorted(torch.bincount(data.labels[torch.from_numpy(data.split_positions["train"])]).tolist()) == [3, 3, 4]
    assert (limit_split_sizes(data_of(shades()), 10, 0).used == data.used).all()
    assert "at most 10 images of each part" in data.split_description
    with pytest.raises(UserError, match="--max-images is 2, but toy has 3 classes"):
        limit_split_sizes(data_of(shades()), 2, 0)


def outcome(values, unit="%", protocol="knn", headline=True):
    line = ScoreKey(protocol, "", "top-1" if unit == "%" else "distance error", unit, headline)
    return Outcome(line, Mean(np.asarray(values, dtype=float)), len(values))


def test_compare__is_paired_and_counts_at_the_printed_digits():
    generator = np.random.default_rng(0)
    base = (generator.random(2000) < 0.5).astype(float)
    better = base.copy()
    better[np.flatnonzero(base == 0)[:80]] = 1
    (row,) = compare("toy", {"a": [outcome(better)], "b": [outcome(base)], "c": [outcome(better)]}, DRAWS)
    assert row.gains["b"].value == pytest.approx(0.04)
    assert row.verdict("b") == "win"
    assert row.is_clear_against("b")
    assert row.verdict("c") == "tie"
    assert not row.is_clear_against("c")
    nearly = better.copy()
    nearly[np.flatnonzero(better)[0]] = 0  # a twentieth of a point
    (row,) = compare("toy", {"a": [outcome(nearly)], "c": [outcome(better)]}, DRAWS)
    assert row.gains["c"].value < 0
    assert row.verdict("c") in ("tie", "loss")


def test_compare__less_distance_wins():
    (row,) = compare("toy", {"a": [outcome([1, 2, 3], "px")], "b": [outcome([2, 3, 4], "px")]}, DRAWS)
    assert row.verdict("b") == "win"


def test_compare__refuses_other_test_images():
    with pytest.raises(UserError, match="same test images, but their numbers are a: 3, b: 4"):
        compare("toy", {"a": [outcome([1, 0, 1])], "b": [outcome([1, 0, 1, 1])]}, DRAWS)


def row_of(data, a, b, protocol="knn", headline=True, score="top-1"):
    scores = {"a": Score(a), "b": Score(b)}
    return ProtocolRow(
        data, ScoreKey(protocol, "", score, "%", headline), 9, scores, {}, {"b": Score(a - b, a - b, a - b)}
    )


def test_tally_and_averages__of_table_10():
    # EsViT's Swin-T against the supervised one: 16 wins, a tie (MNIST), a loss (Pets); means 80.99 and 77.29.
    supervised = [77.4, 94.0, 77.5, 64.3, 55.3, 51.5, 84.2, 73.1, 93.3, 90.8, 91.5, 98.3, 55.1, 97.9, 72.9, 84.0, 79.0]
    esvit = [80.0, 95.3, 82.2, 67.6, 66.4, 61.1, 85.5, 78.1, 92.8, 93.0, 97.4, 98.3, 59.3, 98.9, 84.3, 84.6, 81.1, 52.0]
    pairs = zip(esvit, [*supervised, 51.2], strict=True)
    rows = [row_of(str(number), a / 100, b / 100, "logistic") for number, (a, b) in enumerate(pairs)]
    more = [row_of("0", 0.9, 0.1, headline=False), row_of("1", 0.99, 0.1, "logistic", score="top-5")]
    counted = tally([*rows, *more], "b")
    assert (counted["win"], counted["tie"], counted["loss"]) == (16, 1, 1)
    means = averages([*rows, *more], "logistic")
    assert means["a"] == pytest.approx(0.8099, abs=5e-5)
    assert means["b"] == pytest.approx(0.7729, abs=1e-4)
