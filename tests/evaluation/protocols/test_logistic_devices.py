"""Features on an accelerator and labels on the CPU, as `evaluate_backbone` hands them over."""

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from paucal.evaluation.protocols import logistic as logistic_torch
from paucal.evaluation.protocols.few_labels import few_label_curve
from paucal.evaluation.protocols.logistic import SolverSettings, fit_logistic, fit_selected


class OneDevice(TorchFunctionMode):
    """Refuse losses of tensors on two devices, as CUDA does; the meta device lets them pass."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if "entropy" in getattr(func, "__name__", ""):
            tensors = [value for value in pytree.tree_leaves((args, kwargs or {})) if isinstance(value, Tensor)]
            devices = {str(tensor.device) for tensor in tensors}
            if len(devices) > 1:
                raise RuntimeError(f"Expected all tensors to be on the same device, found {sorted(devices)}")
        return func(*args, **kwargs or {})


def blobs(n=60, dim=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    return torch.randn(n, dim, generator=generator) + 2 * torch.eye(classes, dim)[labels], labels


@pytest.mark.parametrize("classes", [2, 3])
def test_softmax__compares_scores_with_labels_on_the_features_device(classes, monkeypatch):
    compared = []

    def minimise(features, outputs, strength, loss, *limits):
        with OneDevice():
            compared.append(loss(features.new_zeros(len(features), outputs, dtype=torch.float64)).device.type)
        return features.new_zeros(outputs, features.shape[1]), features.new_zeros(outputs), 1, True

    monkeypatch.setattr(logistic_torch, "_minimise", minimise)
    logistic_torch.fit_softmax(
        torch.empty(60, 6, device="meta"), blobs(classes=classes)[1], 1.0, SolverSettings(max_iterations=10)
    )
    many = torch.nn.functional.one_hot(blobs(classes=classes)[1], classes)
    logistic_torch.fit_independent(torch.empty(60, 6, device="meta"), many, 1.0, SolverSettings(max_iterations=10))
    assert compared == ["meta", "meta"]


@pytest.mark.device
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_accelerator__gives_the_processors_classifier(classes):
    if not torch.accelerator.is_available():
        pytest.skip("there is no accelerator")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    solver = SolverSettings("torch", max_iterations=5000, tolerance=1e-7)
    train, val = blobs(classes=classes), blobs(classes=classes, seed=1)
    there, val_there = (train[0].to(accelerator), train[1]), (val[0].to(accelerator), val[1])
    ours, theirs = (fit_logistic(*one, classes, 0.5, solver) for one in (there, train))
    assert ours.weight.device.type == accelerator.type
    torch.testing.assert_close(ours.weight.cpu(), theirs.weight, rtol=1e-4, atol=1e-5)
    assert fit_selected(there, val_there, classes, solver=solver).fits <= 16
    few = few_label_curve(there, val_there, classes, per_class=(5,), repeats=2, solver=solver)
    expected = few_label_curve(train, val, classes, per_class=(5,), repeats=2, solver=solver)
    assert (few[0].hits == expected[0].hits).all()
