"""What only an accelerator would show, found without one: see `imagined_device.py`."""

import pytest
import torch
import torch.nn.functional as F

from contracts.imagined_device import Waits, imagined, put
from contracts.reduced_models import ONE_EACH, build, reduced
from contracts.reduced_objectives import NOW, OBJECTIVES, a_batch
from paucal.evaluation.protocols import correspondence, few_labels, knn, logistic
from paucal.evaluation.protocols.classifier import LinearClassifier, to_double
from paucal.evaluation.protocols.linear_probe import ProbeSettings, cached_batches, train_probes
from paucal.objectives import drloc as drloc_term
from paucal.objectives import self_distillation as distillation
from paucal.objectives import (
    token_labeling,
)
from paucal.training.module import clip_gradients
from paucal.types import Batch, Progress


@pytest.fixture
def drawn(monkeypatch):
    """Imagined tensors have no values, and there are no generators on an imagined device: the draws are replaced."""

    def pairs(batch, n_pairs, height, width, *, generator):
        return torch.zeros(batch, n_pairs, 2, 2, dtype=torch.long, device="cuda")

    real = torch.Generator
    monkeypatch.setattr(drloc_term.torch, "Generator", lambda device="cpu": real())
    monkeypatch.setattr(drloc_term, "draw_pairs", pairs)
    monkeypatch.setattr(token_labeling, "draw_mix_box", lambda grid, generator: (0, 1, 1, 2))
    monkeypatch.setattr(distillation, "mix_crops", lambda crops, alpha: (crops, torch.rand(len(crops))))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_step__stays_on_the_device_and_never_waits_for_it(name, drawn):
    objective = OBJECTIVES[name]().train()
    with imagined():
        put(objective, "cuda")
        batch = a_batch(objective, "cuda")
        with Waits() as waits:
            terms = objective(batch, NOW)
            objective.before_step(NOW)
            objective.after_step(Progress(1, 10, 5))
            objective.diagnostics()
    assert {value.device.type for value in terms.values.values()} == {"cuda"}
    assert waits.lines == []


@pytest.mark.parametrize("name", ONE_EACH)
def test_backbone__stays_on_the_device_and_never_waits_for_it(name):
    model = build(name).train()
    with imagined():
        put(model, "cuda")
        with Waits() as waits:
            logits = model(torch.rand(2, 3, *reduced(name).size, device="cuda"))
    assert logits.device.type == "cuda"
    assert waits.lines == []


def test_clipping__never_waits():
    with imagined():
        weights = [torch.nn.Parameter(torch.rand(3, 2, device="cuda")) for _ in range(2)]
        for weight in weights:
            weight.grad = torch.rand(3, 2, device="cuda")
        with Waits() as waits:
            norm = clip_gradients(weights, 1.0)
            found = (~torch.isfinite(norm)).float()
    assert found.device.type == "cuda"
    assert waits.lines == []


def test_batch__goes_ahead_to_cuda_only():
    asked = []

    class Recorded(torch.Tensor):
        def to(self, *args, **kwargs):
            asked.append((args[0], kwargs["non_blocking"]))
            return self

    image = torch.zeros(2, 3, 4, 4).as_subclass(Recorded)
    batch = Batch(torch.arange(2).as_subclass(Recorded), [image])
    for device in ("cuda", torch.device("cuda:1"), "mps", "cpu"):
        batch.to(device, non_blocking=True)
    batch.to("cuda")
    assert [ahead for _, ahead in asked[::2]] == [True, True, False, False, False]


@pytest.mark.parametrize(("classes", "loss"), [(2, "binary_cross_entropy_with_logits"), (4, "cross_entropy")])
def test_logistic__takes_the_labels_to_the_features(classes, loss, monkeypatch):
    # "meta" stands for a GPU: all that matters is that the features lie elsewhere than the labels.
    compared = []

    def minimise(features, outputs, strength, loss, solver):
        loss(torch.empty(len(features), outputs, dtype=torch.float64, device=features.device))
        return torch.zeros(outputs, 2), torch.zeros(outputs), 1, True

    monkeypatch.setattr(logistic, "_minimise", minimise)
    monkeypatch.setattr(logistic.F, loss, lambda logits, labels: compared.append((logits, labels)))
    labels = torch.arange(8) % classes
    logistic.fit_softmax(torch.empty(8, 2, device="meta"), labels, 1.0, logistic.SolverSettings(max_iterations=10))
    assert [(a.device.type, b.device.type) for a, b in compared] == [("meta", "meta")]


def test_linear_probe__moves_the_labels_once():
    with imagined():
        features, labels = torch.empty(64, 3, device="cuda"), torch.zeros(64, dtype=torch.long)
        settings = ProbeSettings(epochs=1, batch=16)
        with Waits() as waits:
            batches = cached_batches(features, labels, settings)
        moved = len(waits.lines)
        with Waits() as waits:
            weight, _ = train_probes(batches, 3, 4, settings)
    assert moved == 1
    assert weight.device.type == "cuda"
    # The first weights, the rates, and the numbers of each batch's rows, which are drawn on the CPU.
    assert len(waits.lines) <= 2 + 4


def test_float64__is_made_on_the_cpu_of_what_lies_on_mps():
    with imagined():
        assert to_double(torch.rand(3, device="mps")).device.type == "cpu"
        assert to_double(torch.rand(3, device="cuda")).device.type == "cuda"
        scores = LinearClassifier(torch.rand(3, 2).double(), torch.rand(3).double()).scores(torch.rand(4, 2))
    assert scores.dtype == to_double(torch.rand(3)).dtype == torch.float64


def test_float64__of_features_is_made_in_one_place(monkeypatch):
    def refused(values):
        raise AssertionError("MPS has no float64")

    monkeypatch.setattr(torch.Tensor, "double", refused)
    for module in (knn, few_labels, logistic, correspondence):
        monkeypatch.setattr(module, "to_double", lambda values: values.to(torch.float64))
    features, labels = torch.randn(12, 3), torch.arange(12) % 3
    assert knn.knn_scores(features, labels, features, 3, [2])[2].dtype == torch.float64
    for backend in ("sklearn", "torch"):
        solver = logistic.SolverSettings(backend)
        assert logistic.fit_logistic(features, labels, 3, 1.0, solver).weight.dtype == torch.float64
    many = F.one_hot(labels, 3)
    assert logistic.fit_logistic(features, many, 3, 1.0, solver).weight.dtype == torch.float64
    monkeypatch.setattr(few_labels, "hits", lambda scores, truth: scores.numpy())
    few = few_labels.few_label_curve((features, labels), (features, labels), 3, [2], 1, solver=solver)
    assert few[0].hits.dtype == "float64"
    grid = torch.randn(2, 4, 3, 3)
    assert correspondence.match_cells(grid, grid, torch.zeros(2, 9, 2), (8, 8)).distance.dtype == torch.float64


def test_sessions_of_imagination__find_what_they_are_there_for():
    with imagined(), Waits() as waits:
        torch.tensor(1.0).to("cuda")
        torch.zeros(2, device="cuda").new_tensor([1.0, 2.0])
        torch.tensor(1.0).to("cuda", non_blocking=True)
        torch.zeros(2, device="cuda").cpu()
        assert len(waits.lines) == 3
        with pytest.raises(RuntimeError, match="device"):
            F.cross_entropy(torch.zeros(2, 3, device="cuda"), torch.zeros(2, dtype=torch.long))
