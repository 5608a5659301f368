"""The loss of pixels."""

import pytest
import torch

from paucal.losses import pixel_loss


def test_pixel_loss__is_the_mean_over_labelled_pixels():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator)
    mask = torch.randint(0, 3, (2, 4, 5), generator=generator)
    mask[0, 1:3] = 255
    total, count = 0.0, 0
    for b in range(2):
        for y in range(4):
            for x in range(5):
                if mask[b, y, x] != 255:
                    total -= float(logits[b, :, y, x].log_softmax(0)[mask[b, y, x]])
                    count += 1
    assert count == 30
    assert float(pixel_loss(logits, mask.to(torch.uint8))) == pytest.approx(total / count, rel=1e-5)


def test_pixel_loss__gives_ignored_pixels_no_gradient():
    logits = torch.randn(1, 2, 2, 2, requires_grad=True)
    pixel_loss(logits, torch.tensor([[[0, 255], [1, 255]]])).backward()
    assert logits.grad is not None
    assert float(logits.grad[..., 1].abs().sum()) == 0
    assert float(logits.grad[..., 0].abs().min()) > 0


def test_pixel_loss__of_nothing_is_zero_with_a_gradient_of_zero():
    logits = torch.randn(1, 2, 2, 2, requires_grad=True)
    loss = pixel_loss(logits, torch.full((1, 2, 2), 255))
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None
    assert float(logits.grad.abs().sum()) == 0


def test_pixel_loss__is_computed_in_float32_and_refuses_other_sizes():
    logits = torch.full((1, 2, 400, 400), 30.0, dtype=torch.bfloat16)
    assert pixel_loss(logits, torch.zeros(1, 400, 400, dtype=torch.long)).dtype == torch.float32
    with pytest.raises(ValueError, match="must have the same batch size"):
        pixel_loss(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 5, dtype=torch.long))
