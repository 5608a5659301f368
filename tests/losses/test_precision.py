"""Every loss gives in half precision what it gives of the same rounded inputs in float32, and nothing overflows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paucal.backbones import BackboneSpec
from paucal.losses import (
    DrLocReading,
    Sharpness,
    drloc_loss,
    effective_rank,
    entropy,
    feature_spread,
    guidance_loss,
    match_regions,
    offset_cross_entropy,
    offset_l1,
    offset_variance_regression,
    prototype_cross_entropy,
    prototypes,
    region_targets,
    view_targets,
)
from paucal.losses.label_targets import map_targets
from paucal.losses.token_labeling import class_loss, dense_loss, soft_cross_entropy
from paucal.objectives import Supervised
from paucal.objectives.distilled_network import ProjectionHead
from paucal.objectives.self_distillation import task_health
from paucal.types import Batch, Features, Progress

HALF = (torch.bfloat16, torch.float16)
CLASSES = 1000


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def label_targets(size=(3, 3)):
    """Targets of maps with sharp answers, for views that are turned and off the centre."""
    maps, classes = 8 * draw(2, 5, 14, 14), torch.tensor([[3, 40, 500, 77, 999], [0, 1, 2, -1, -1]])
    turned = torch.tensor([[[0.61, -0.13, 0.21], [0.17, 0.55, -0.33]]]).repeat(2, 1, 1)
    return map_targets(maps, classes, turned, size, CLASSES, torch.tensor([[1.0, 0.8], [0.9, 1.0]])).smoothed(0.1)


def distilled(values: Tensor) -> Tensor:
    rows, goals, kernel = values[:, :, :16], draw(2, 2, 16, seed=1), draw(64, 16, seed=2)
    aim = view_targets(2, 2, 9)
    return prototype_cross_entropy(rows, kernel, goals, kernel, aim, Sharpness(0.1, 0.04, draw(64)))


def regions(values: Tensor) -> Tensor:
    student, teacher = [values[:, :4, :16], values[:, 4:, :16]], [values[:, :4, 16:32], values[:, 4:, 16:32]]
    aim, kernel = region_targets(student, teacher), draw(64, 16, seed=2)
    sharpness = Sharpness(0.1, 0.04, draw(64))
    return prototype_cross_entropy(values[:, :, :16], kernel, values[:, :, 16:32], kernel, aim, sharpness)


def localized(mode: str) -> Callable[[Tensor], Tensor]:
    reading = DrLocReading(mode=mode)  # type: ignore[arg-type]
    pairs = torch.randint(6, (2, 9, 2, 2), generator=torch.Generator().manual_seed(4))

    def loss(values: Tensor) -> Tensor:
        width = 11 if mode in ("ce", "reg") else 1
        answers = values[..., :width], values[..., width : 2 * width]
        return drloc_loss(torch.empty(2, 4, 6, 6), lambda *_: answers, reading, pairs=pairs)

    return loss


# Each takes (2, 9, 1000) values: logits of two images' nine places, or whatever else the loss reads.
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "drloc l1": localized("l1"),
    "drloc signed": localized("signed"),
    "drloc ce": localized("ce"),
    "drloc reg": localized("reg"),
    "offset l1": lambda values: offset_l1(values[..., :2], draw(2, 9, 2)),
    "offset ce": lambda values: offset_cross_entropy(values, torch.arange(18).view(2, 9)),
    "offset reg": lambda values: offset_variance_regression(
        values, torch.arange(18).view(2, 9), log_variance_factor=0.001
    ),
    "view": distilled,
    "region": regions,
    "guidance": lambda values: guidance_loss(
        values[:, :, :36].unflatten(2, (6, 6)), values[:, :, 40:49].unflatten(2, (3, 3))
    ),
    "tokens": lambda values: dense_loss(values, label_targets()),
    "class": lambda values: class_loss(values[:, 0], label_targets((1, 1)), kept=0.7),
    "dense targets": lambda values: soft_cross_entropy(values, label_targets().dense().to(values.dtype)).mean(),
}


@pytest.mark.parametrize("scale", [3.0, 3e4])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_loss__of_half_precision_is_that_of_float32(name, dtype, scale):
    values = (scale * draw(2, 9, CLASSES).clamp(-2, 2)).to(dtype)
    exact = values.float().requires_grad_()
    rounded = values.clone().requires_grad_()
    expected = LOSSES[name](exact)
    expected.backward()
    assert torch.isfinite(expected)
    for autocast in (False, True):
        rounded.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = LOSSES[name](rounded)
        assert loss.dtype == torch.float32
        if "dense" not in name:  # whose targets are rounded too
            torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-7)
        assert torch.isfinite(loss)
        loss.backward()
        assert torch.isfinite(rounded.grad).all()
        if scale < 10 and "dense" not in name:
            torch.testing.assert_close(rounded.grad.float(), exact.grad, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_loss__under_autocast_does_not_round_what_it_is_given(name):
    values = 3 * draw(2, 9, CLASSES)
    with torch.autocast("cpu", torch.bfloat16):
        rough = LOSSES[name](values)
    torch.testing.assert_close(rough, LOSSES[name](values), rtol=1e-6, atol=1e-7)


def test_token_targets__are_the_same_under_autocast():
    expected = label_targets()
    with torch.autocast("cpu", torch.bfloat16):
        rough = label_targets()
    assert expected.named.max() > 0.5
    for name in ("named", "unnamed_probability", "coverage"):
        torch.testing.assert_close(getattr(rough, name), getattr(expected, name), rtol=0, atol=0)


def test_matches__are_the_same_under_autocast():
    student, teacher = draw(2, 300, 32), draw(2, 300, 32, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        rough = match_regions(student, teacher)
    assert torch.equal(rough, match_regions(student, teacher))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_rounded_factors__lose_no_gradient_of_small_weights(dtype, monkeypatch):
    """As on CUDA, whose products of half precision come out in float32; the weights are those of a region task."""
    rows = torch.nn.functional.normalize(draw(2, 9, 64), dim=2).to(dtype).float().requires_grad_()
    kernel = torch.nn.functional.normalize(draw(4096, 64, seed=1), dim=1).to(dtype).float().requires_grad_()
    aim = view_targets(2, 2, 9)
    small = type(aim)(aim.rows, aim.weights / 500)

    def compare():
        loss = prototype_cross_entropy(
            rows, kernel, rows[:, :2], kernel, small, Sharpness(1.0, 0.04, torch.zeros(4096))
        )
        return loss.detach(), *torch.autograd.grad(loss, (rows, kernel))

    exact = compare()
    monkeypatch.setattr(prototypes, "_factor_dtype", lambda kind: dtype)
    rounded = compare()
    torch.testing.assert_close(rounded[0], exact[0], rtol=1e-6, atol=0)
    for ours, expected in zip(rounded[1:], exact[1:], strict=True):
        assert (ours - expected).norm() < 2**-8 * expected.norm()


@pytest.mark.parametrize("labels", ["hard", "mixed"])
def test_cross_entropy__is_that_of_float32_logits(labels):
    backbone = BackboneSpec("resnet18", 10, image_size=(32, 32)).build()
    objective = Supervised(backbone, label_smoothing=0.1)
    logits = (30000 * draw(4, 10)).clamp(-3e4, 3e4).half()
    backbone.extract = lambda *_: [Features([], draw(4, 4), logits)]  # type: ignore[method-assign]
    truth = torch.arange(4) if labels == "hard" else draw(4, 10).softmax(1)
    found = objective(Batch(torch.arange(4), [draw(4, 3, 32, 32)], truth), Progress(0, 1, 1)).values["class"]
    expected = torch.nn.functional.cross_entropy(logits.float(), truth, label_smoothing=0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [1.0, 3e4])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_feature_health__is_that_of_float32(dtype, scale):
    features = (scale * draw(40, 16).clamp(-2, 2)).to(dtype)
    for measure, values in ((feature_spread, features), (effective_rank, features), (entropy, features.softmax(1))):
        with torch.autocast("cpu", torch.bfloat16):
            found = measure(values)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, measure(values.float()), rtol=1e-6, atol=0)


def test_task_health__finds_in_half_precision_what_it_finds_in_float32():
    """Of scores rounded to bfloat16 several share the highest, and another one may come first."""
    torch.manual_seed(0)
    heads = [ProjectionHead(16, 4096, 8, 16, layers=1) for _ in range(2)]
    for head in heads:
        head.mlp = torch.nn.Identity()  # the network itself runs in half precision
    seen = draw(64, 16).bfloat16()
    rows = (seen.float() + 0.05 * draw(64, 16, seed=1)).bfloat16()
    sharpness = Sharpness(0.1, 0.04, torch.zeros(4096))
    heads[1].load_state_dict(heads[0].state_dict())
    expected = task_health(heads[0], heads[1], seen.float(), rows.float(), sharpness)
    with torch.autocast("cpu", torch.bfloat16):
        found = task_health(heads[0], heads[1], seen, rows, sharpness)
    assert 0.3 < expected["agreement"] < 1
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
