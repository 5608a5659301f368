"""Weights of classes in the supervised loss, against the sum written out."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from paucal.backbones.spec import BackboneSpec
from paucal.objectives import Supervised
from paucal.tasks.classification.checks import balanced_class_weights, positive_weights
from paucal.types import Batch, Progress

PROGRESS = Progress(0, 10, 5)


def test_weights__are_scikit_learns_balanced_ones():
    labels = np.repeat([0, 1, 2], [7, 2, 11])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_class_weights(np.bincount(labels)).numpy() == pytest.approx(expected)
    assert balanced_class_weights(np.array([5, 0, 5])).tolist() == [1.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def objective() -> Supervised:
    torch.manual_seed(0)
    spec = BackboneSpec("vit_mini", 3, image_size=(16, 16), arguments={"depth": 1})
    return Supervised(spec.build(), label_smoothing=0.1).eval()


def batch(labels) -> Batch:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return Batch(torch.arange(4), [images], labels)


def test_loss__is_the_weighted_mean_of_hard_and_of_shared_labels(objective):
    labels, weights = torch.tensor([0, 2, 1, 2]), torch.tensor([2.0, 0.5, 1.5])
    plain = objective(batch(labels), PROGRESS).total
    objective.set_class_weights(weights)
    logs = objective.deployable()(batch(labels).views[0]).log_softmax(1)
    smooth = torch.nn.functional.one_hot(labels, 3) * 0.9 + 0.1 / 3
    expected = -(smooth * weights * logs).sum() / 4
    assert objective(batch(labels), PROGRESS).total.item() == pytest.approx(expected.item(), rel=1e-5)
    shared = torch.nn.functional.one_hot(labels, 3).float()
    assert objective(batch(shared), PROGRESS).total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert plain.item() != pytest.approx(expected.item(), rel=1e-3)
    assert not [name for name in objective.state_dict() if "class_weights" in name]


def test_loss__of_several_labels_is_binary_and_weighs_positive_images():
    torch.manual_seed(0)
    spec = BackboneSpec("vit_mini", 3, image_size=(16, 16), arguments={"depth": 1})
    objective = Supervised(spec.build()).eval()
    objective.use_sigmoids()
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]])
    shares = objective.deployable()(batch(labels).views[0]).sigmoid()
    expected = -(labels * shares.log() + (1 - labels) * (1 - shares).log())
    loss = objective(batch(labels), PROGRESS).values["class"]
    assert loss.item() == pytest.approx(expected.mean().item(), rel=1e-5)
    weights = positive_weights(labels.numpy().astype(np.int8))
    assert weights.tolist() == pytest.approx([1.0, 3.0, 1 / 3])
    objective.set_class_weights(weights)
    weighed = torch.where(labels == 1, weights * expected, expected)
    assert objective(batch(labels), PROGRESS).total.item() == pytest.approx(weighed.mean().item(), rel=1e-5)
