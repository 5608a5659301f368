"""Every protocol of evaluation on an accelerator, beside the CPU."""

import csv

import pytest
import torch

from device import calls
from device.machine import DEVICE, apart, marks
from paucal.evaluation.protocols.correspondence import match_cells
from paucal.evaluation.protocols.few_labels import few_label_curve
from paucal.evaluation.protocols.knn import knn_scores
from paucal.evaluation.protocols.linear_probe import ProbeSettings, cached_batches, fit_probe
from paucal.evaluation.protocols.logistic import SolverSettings, fit_logistic, fit_selected

pytestmark = marks()
WORDS = ["--bootstrap", "50", "--seed", "1", "--probe-epochs", "3", "--no-cache"]
PROTOCOLS = ["knn", "linear", "logistic", "correspondence", "few-labels", "classification"]


def blobs(classes: int, count: int = 60, width: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(9)) * 2
    labels = torch.arange(count) % classes
    return centres[labels] + torch.randn(count, width, generator=draw), labels


@pytest.mark.parametrize("backend", ["torch", "sklearn"])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_logistic__is_that_of_the_cpu(classes, backend):
    # The labels stay on the CPU, as `paucal eval` has them.
    features, labels = blobs(classes)
    expected = fit_logistic(features, labels, classes, 1.0, SolverSettings("sklearn", tolerance=1e-7))
    found = fit_logistic(features.to(DEVICE), labels, classes, 1.0, SolverSettings(backend, tolerance=1e-7))
    assert apart(expected.scores(features).softmax(1), found.scores(features.to(DEVICE)).softmax(1)) < 1e-3


@pytest.mark.parametrize("backend", ["torch", "sklearn"])
def test_logistic__of_several_classes_each_is_that_of_the_cpu(backend):
    features, labels = blobs(4)
    many = torch.nn.functional.one_hot(labels, 4)
    many[::7] = -1
    expected = fit_logistic(features, many, 4, 1.0, SolverSettings(tolerance=1e-7))
    found = fit_logistic(features.to(DEVICE), many, 4, 1.0, SolverSettings(backend, tolerance=1e-7))
    assert apart(expected.weight, found.weight) < 1e-2


def test_logistic__chooses_lambda_there():
    train, val = blobs(3), blobs(3, 30, seed=1)
    found = fit_selected(
        (train[0].to(DEVICE), train[1]), (val[0].to(DEVICE), val[1]), 3, solver=SolverSettings("torch")
    )
    assert max(found.search.scores.values()) > 0.8


def test_knn__is_that_of_the_cpu():
    (train, labels), (test, _) = blobs(5), blobs(5, 40, seed=1)
    expected = knn_scores(train, labels, test, 5, [1, 5, 20])
    found = knn_scores(train.to(DEVICE), labels, test.to(DEVICE), 5, [1, 5, 20])
    for k, votes in expected.items():
        assert found[k].device.type == "cpu"
        assert apart(votes, found[k]) < 1e-3


def test_few_labels__are_those_of_the_cpu():
    train, test = blobs(4), blobs(4, 40, seed=1)
    expected = few_label_curve(train, test, 4, [1, 5], 3)
    there = [(part[0].to(DEVICE), part[1]) for part in (train, test)]
    for backend in ("torch", "sklearn"):
        found = few_label_curve(*there, 4, [1, 5], 3, solver=SolverSettings(backend))
        for one, other in zip(expected, found, strict=True):
            assert abs(one.hits.mean(1) - other.hits.mean(1)).max() < 0.03


def test_linear_probe__is_that_of_the_cpu():
    (features, labels), val = blobs(4, 120), blobs(4, 40, seed=1)
    settings = ProbeSettings(epochs=5, batch=32)
    here, there = (cached_batches(one, labels, settings) for one in (features, features.to(DEVICE)))
    expected = fit_probe(here, here, val, 4, settings)
    found = fit_probe(there, there, (val[0].to(DEVICE), val[1]), 4, settings)
    assert found.classifier.weight.device.type == DEVICE
    for rate, score in expected.scores.items():
        assert found.scores[rate] == pytest.approx(score, abs=0.06)


def test_matching__is_that_of_the_cpu():
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.randn(3, 8, 4, 4, generator=draw) for _ in range(2))
    places = torch.rand(3, 16, 2, generator=draw) * 2 - 1
    expected = match_cells(first, second, places, (32, 32))
    found = match_cells(first.to(DEVICE), second.to(DEVICE), places.to(DEVICE), (32, 32))
    assert apart(expected.accuracy, found.accuracy) < 1e-6
    assert apart(expected.distance, found.distance) < 1e-6


@pytest.mark.parametrize("more", [[], ["--augment"], ["--solver", "sklearn"], ["--feature-dtype", "float16"]])
def test_eval__gives_the_scores_of_the_cpu_by_every_protocol(things, more, tmp_path):
    tables = {}
    for device in dict.fromkeys(("cpu", DEVICE)):
        output = tmp_path / device
        words = ["--protocol", *PROTOCOLS[:5], "--device", device, *WORDS, *more]
        assert calls.run("eval", things.cnn, *words, "--out", output) == 0
        table = csv.DictReader((output / "table.csv").read_text().splitlines())
        tables[device] = {(r["model"], r["protocol"], r["setting"], r["score"]): float(r["value"]) for r in table}
    assert {key[1] for key in tables[DEVICE]} == set(PROTOCOLS[:5])
    for key, value in tables["cpu"].items():
        # Six test images: one of them may fall on the other side.
        tolerance = 25.0 if "distance" not in key[3] else 2.0
        assert abs(tables[DEVICE][key] - value) <= tolerance, key


def test_eval__classifies_as_on_the_cpu(things, tmp_path):
    answers = []
    for number, device in enumerate(("cpu", DEVICE)):
        output = tmp_path / str(number)
        assert calls.run("eval", things.cnn, things.photos, "--device", device, "--output", output) == 0
        rows = csv.DictReader((output / "predictions.csv").read_text().splitlines())
        answers.append({row["key"]: row["predicted"] for row in rows})
    assert answers[0].keys() == answers[1].keys()
    assert len(answers[0]) == 6  # the run's test images
    assert sum(answers[0][path] != answers[1][path] for path in answers[0]) <= 1


def test_predict__gives_the_probabilities_of_the_cpu(things, capsys):
    found = []
    for device in ("cpu", DEVICE):
        capsys.readouterr()
        assert calls.run("predict", things.cnn, things.photos, "--device", device) == 0
        rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
        found.append(torch.tensor([[float(row[f"p_class{number}"]) for number in range(3)] for row in rows]))
    assert found[0].shape == (36, 3)
    assert apart(*found) < 5e-3
