"""The contract of every backbone, on an accelerator, beside the CPU."""

import copy

import pytest
import torch

from contracts.reduced_models import ONE_EACH, build, images, reduced
from device.machine import CLOSE, DEVICE, PRECISIONS, apart, cast, marks, never_waiting, require
from paucal.backbones import FeatureBackbone
from paucal.backbones.attention_maps import recorded_attention
from paucal.backbones.spec import use_channels_last
from paucal.types import FeatureRequest

pytestmark = marks()
each = pytest.mark.parametrize("name", ONE_EACH)
precisely = pytest.mark.parametrize("precision", PRECISIONS)
SCALE = 1024  # float16 has no small gradients
EVERYTHING = (FeatureRequest(), FeatureRequest("stages", norm=False), FeatureRequest("blocks", norm=False))


@each
@precisely
def test_features__are_those_of_the_cpu(name, precision):
    require(precision)
    model, x = build(name), images(reduced(name).size)
    expected = FeatureBackbone(copy.deepcopy(model), reduced(name).size)
    backbone = FeatureBackbone(use_channels_last(model), reduced(name).size).to(DEVICE)
    there = x.to(DEVICE)
    with torch.no_grad():
        wanted = expected.extract(x, EVERYTHING)
        with cast(precision), never_waiting():
            found = backbone.extract(there, EVERYTHING)
    for one, other in zip(wanted, found, strict=True):
        assert apart(one.logits, other.logits) < 2 * CLOSE[precision]
        assert apart(one.pooled, other.pooled) < 2 * CLOSE[precision]
        for a, b in zip(one.grids, other.grids, strict=True):
            assert b.device.type == DEVICE
            assert apart(a, b) < 2 * CLOSE[precision]


@each
@precisely
def test_gradients__are_those_of_the_cpu(name, precision):
    require(precision)
    model, x = build(name), images(reduced(name).size, 4)
    other, there = copy.deepcopy(model).to(DEVICE), x.to(DEVICE)
    (SCALE * model(x).square().mean()).backward()
    with cast(precision), never_waiting():
        loss = SCALE * other(there).float().square().mean()
    with never_waiting():
        loss.backward()
    pairs = [(a.grad, b.grad) for a, b in zip(model.parameters(), other.parameters(), strict=True)]
    assert all((a is None) == (b is None) for a, b in pairs)
    together = [torch.cat([pair[side].cpu().flatten() for pair in pairs if pair[0] is not None]) for side in (0, 1)]
    assert torch.isfinite(together[1]).all()
    assert apart(*together) < 5 * CLOSE[precision]


@each
@precisely
def test_compiled__gives_the_same(name, precision):
    require(precision)
    model, x = build(name).to(DEVICE), images(reduced(name).size).to(DEVICE)
    torch.compiler.reset()
    with torch.no_grad(), cast(precision):
        plain = model(x)
        model.compile()
        assert apart(plain, model(x)) < CLOSE[precision]


@each
def test_attention__paths_agree(name):
    if name.startswith("resnet"):
        pytest.skip("a CNN has no attention")
    model, x = build(name).to(DEVICE), images(reduced(name).size).to(DEVICE)
    with torch.no_grad():
        fused = model(x)
        with recorded_attention(model) as maps:
            assert apart(fused, model(x)) < CLOSE["32-true"]
    assert {weights.device.type for weights in maps.values()} == {DEVICE}


@each
def test_checkpointing__changes_no_gradient(name):
    plain, saving = build(name).to(DEVICE), build(name).to(DEVICE)
    saving.set_grad_checkpointing(True)
    for model in (plain, saving):
        model.train()
        torch.manual_seed(3)  # of what is dropped
        model(images(reduced(name).size).to(DEVICE)).square().mean().backward()
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        if one.grad is not None and one.grad.norm() > 1e-4:
            assert apart(one.grad, other.grad) < 10 * CLOSE["32-true"]
