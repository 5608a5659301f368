"""Binary cross-entropy of several labels."""

import pytest
import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy

from paucal.losses.supervised import multi_label_loss

LOGITS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
TARGETS = (torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) > 0.5).float()


def test_loss__is_the_mean_over_images_and_classes():
    expected = F.binary_cross_entropy(LOGITS.sigmoid(), TARGETS)
    torch.testing.assert_close(multi_label_loss(LOGITS, TARGETS), expected)


def test_loss__of_one_label_is_smoothed_as_timm_does():
    labels = torch.tensor([0, 3, 1, 1, 2])
    expected = BinaryCrossEntropy(smoothing=0.1)(LOGITS, labels)
    torch.testing.assert_close(multi_label_loss(LOGITS, F.one_hot(labels, 4).float(), 0.1), expected)


def test_loss__leaves_out_what_nobody_knows():
    targets, logits = TARGETS.clone(), LOGITS.clone().requires_grad_()
    targets[1, 2] = torch.nan
    known = [(row, column) for row in range(5) for column in range(4) if (row, column) != (1, 2)]
    each = F.binary_cross_entropy_with_logits(LOGITS, TARGETS, reduction="none")
    loss = multi_label_loss(logits, targets)
    assert loss.item() == pytest.approx(float(torch.stack([each[place] for place in known]).mean()))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[1, 2] == 0
    assert gradient.isfinite().all()
    assert multi_label_loss(LOGITS, torch.full_like(TARGETS, torch.nan)) == 0


def test_loss__weighs_the_images_of_a_class():
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0])
    expected = F.binary_cross_entropy_with_logits(LOGITS, TARGETS, pos_weight=weights)
    torch.testing.assert_close(multi_label_loss(LOGITS, TARGETS, pos_weight=weights), expected)
