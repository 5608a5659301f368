"""Hard distillation: the cross-entropy on the class that the teacher finds likeliest."""

import math

import pytest
import torch

from paucal.losses import hard_distillation_loss


def test_loss__equals_a_naive_loop():
    generator = torch.Generator().manual_seed(0)
    logits, teacher = (torch.randn(5, 4, generator=generator) for _ in range(2))
    found = 0.0
    for own, other in zip(logits.tolist(), teacher.tolist(), strict=True):
        likeliest = max(range(4), key=lambda k: other[k])
        found -= own[likeliest] - math.log(sum(math.exp(value) for value in own))
    assert hard_distillation_loss(logits, teacher).item() == pytest.approx(found / 5, rel=1e-6)


def test_loss__teaches_the_network_and_not_the_teacher():
    logits, teacher = torch.zeros(2, 3, requires_grad=True), torch.eye(3)[:2].requires_grad_()
    hard_distillation_loss(logits, teacher).backward()
    assert teacher.grad is None
    expected = (torch.full((2, 3), 1 / 3) - torch.eye(3)[:2]) / 2
    torch.testing.assert_close(logits.grad, expected)


def test_loss__of_half_precision_is_that_of_float32():
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert hard_distillation_loss(logits, logits).dtype == torch.float32
    assert hard_distillation_loss(logits, logits) == hard_distillation_loss(logits.float(), logits.float())
