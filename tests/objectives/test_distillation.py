"""Distillation: which logits learn what, what the teacher sees, and that it never learns."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from contracts import toys
from paucal.backbones import BackboneSpec
from paucal.objectives import Distillation, Supervised
from paucal.types import Batch, Features, Progress

NOW = Progress(0, 10, 5)
TINY = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}


class Painted(nn.Module):
    """Names a class by the mean of an image's first channel: below 0, 0 and above, 1 and above."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.ones(()))
        self.sides: list[tuple[int, ...]] = []

    def forward(self, images):
        self.sides.append(tuple(images.shape[2:]))
        level = images[:, 0].mean((1, 2)) * self.rows
        return torch.stack([-level, 0.1 + 0 * level, level - 0.95], 1)


def teach(name: str = "deit_tiny_distilled_patch16_224", **options) -> tuple[Supervised, Distillation]:
    torch.manual_seed(0)
    spec = BackboneSpec(name, 3, image_size=(32, 32), arguments=TINY)
    term = Distillation(Painted(), 3, **options)
    return Supervised(spec.build(), {"distillation": term}), term


def batch() -> Batch:
    images = torch.stack([torch.full((3, 32, 32), level) for level in (-1.0, 0.0, 2.0, 2.0)])
    return Batch(torch.arange(4), [images], torch.tensor([0, 1, 2, 0]))


def test_distillation_token__learns_the_teachers_classes_and_the_class_token_the_labels():
    objective, _ = teach()
    model = objective.backbone.model
    model.set_distilled_training(True)
    objective.train()
    terms = objective(batch(), NOW)
    tokens, distilled = model(batch().views[0])
    torch.testing.assert_close(terms.values["class"], F.cross_entropy(tokens, batch().labels))
    torch.testing.assert_close(terms.values["distillation"], F.cross_entropy(distilled, torch.tensor([0, 1, 2, 2])))
    torch.testing.assert_close(terms.total, terms.values["class"] + terms.values["distillation"])
    terms.values["distillation"].backward()
    assert model.head.weight.grad is None
    assert model.head_dist.weight.grad.any()
    objective.eval()
    with torch.no_grad():  # DeiT, section 4: the answer of both heads
        answer = objective.deployable()(batch().views[0])
        heads = [getattr(model, name) for name in ("head", "head_dist")]
        final = model.forward_features(batch().views[0])
    torch.testing.assert_close(answer, (heads[0](final[:, 0]) + heads[1](final[:, 1])) / 2)


def test_one_classifier__learns_both():
    objective, _ = teach("vit_tiny_patch16_224", weight=0.5)
    objective.train()
    terms = objective(batch(), NOW)
    logits = objective.backbone.model(batch().views[0])
    torch.testing.assert_close(terms.values["class"], F.cross_entropy(logits, batch().labels))
    torch.testing.assert_close(terms.values["distillation"], F.cross_entropy(logits, torch.tensor([0, 1, 2, 2])))
    torch.testing.assert_close(terms.total, terms.values["class"] + 0.5 * terms.values["distillation"])


def test_soft_teacher__gives_its_probabilities_at_its_temperature():
    objective, term = teach("vit_tiny_patch16_224", soft=True, temperature=2.0)
    objective.train()
    loss = objective(batch(), NOW).values["distillation"]
    logits = objective.backbone.model(batch().views[0])
    shares = (Painted()(batch().views[0]) / 2).softmax(1)
    torch.testing.assert_close(loss, -(shares * logits.log_softmax(1)).sum(1).mean())
    torch.testing.assert_close(term.teacher_logits(batch().views[0]).softmax(1), shares)


def test_teacher__sees_what_it_was_trained_to_see_and_answers_in_the_runs_order():
    _, term = teach("vit_tiny_patch16_224", size=(8, 8))
    logits = torch.randn(4, 3)
    term.set_renormalisation([1.0] * 3, [-3.0] * 3)  # all below 0: its class 0
    term.set_teacher_columns([2, 0, 1])  # which is the run's class 1
    found = term(Features([], logits, logits), batch(), NOW)
    torch.testing.assert_close(found, F.cross_entropy(logits, torch.ones(4, dtype=torch.long)))
    assert term.guide.sides == [(8, 8)]


def test_teacher__never_learns_and_stays_in_evaluation_mode(tmp_path):
    torch.manual_seed(0)
    teacher = timm.create_model("resnet18_cifar", num_classes=12, channels=(8, 12, 16, 20))
    term = Distillation(teacher, 10)
    term.set_teacher_columns(range(1, 11))
    objective = Supervised(toys.spec().build(), {"distillation": term})
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    toys.train(objective, tmp_path, epochs=1, average=None)
    assert not any(module.training for module in teacher.modules())
    assert all(torch.equal(before[name], value) for name, value in teacher.state_dict().items())
    assert not any("guide" in name for name in objective.deployable().state_dict())


def test_term__needs_a_classifier():
    _, term = teach("vit_tiny_patch16_224")
    with pytest.raises(ValueError, match="needs a backbone with a classifier"):
        term(Features([], torch.zeros(4, 3), None), batch(), NOW)
