"""The parts of T2T-ViT against plain transcriptions of their formulas."""

import math

import pytest
import torch
from torch.nn import functional

from paucal.backbones.families.t2t_vit import (
    PerformerLayer,
    TransformerLayer,
    cut_windows,
    padding_width,
    project_windows,
    reorder_to_cells_last,
    sinusoid,
)


@pytest.mark.parametrize(("side", "stride"), [(7, 4), (7, 1), (7, 2), (7, 3), (3, 2)])
@pytest.mark.parametrize("size", [(32, 24), (13, 22)])
def test_cut_windows__is_unfold_in_another_order(side, stride, size) -> None:
    cells = torch.randn(2, 5, *size, dtype=torch.float64, requires_grad=True)
    expected = functional.unfold(cells, side, padding=padding_width(side, stride), stride=stride).transpose(1, 2)
    actual = cut_windows(cells.permute(0, 2, 3, 1), side, stride).flatten(1, 2)
    assert torch.equal(actual, reorder_to_cells_last(expected, 5))
    grads = [
        torch.autograd.grad((one * torch.arange(one.numel()).view_as(one)).sum(), cells)[0]
        for one in (actual, reorder_to_cells_last(expected, 5))
    ]
    torch.testing.assert_close(grads[0], grads[1])


def test_padding__is_the_published_one() -> None:
    assert (padding_width(7, 4), padding_width(3, 2)) == (2, 1)


def published_order(windows, channels):
    return windows.unflatten(-1, (-1, channels)).transpose(-2, -1).flatten(-2)


@pytest.mark.parametrize("bias", [True, False])
def test_project_windows__is_the_norm_and_the_layer_in_values_and_gradients(bias) -> None:
    torch.manual_seed(0)
    norm, linear = torch.nn.LayerNorm(36).double(), torch.nn.Linear(36, 5, bias).double()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    windows = torch.randn(2, 3, 2, 36, dtype=torch.float64, requires_grad=True)
    outputs = project_windows(windows, norm, linear, 4), linear(norm(published_order(windows, 4)))
    torch.testing.assert_close(*outputs)
    inputs = [windows, *norm.parameters(), *linear.parameters()]
    torch.testing.assert_close(*(torch.autograd.grad(one.square().sum(), inputs) for one in outputs))


def test_performer_layer__is_the_published_sequence() -> None:
    torch.manual_seed(0)
    layer, windows = PerformerLayer(4, 9, 8, drop=0.0).double(), torch.randn(2, 3, 2, 36, dtype=torch.float64)
    x = layer.kqv(layer.norm1(published_order(windows, 4))).flatten(1, 2)
    key, query, value = x[..., :8], x[..., 8:16], x[..., 16:]
    of_key, of_query = ((one @ layer.w.T - one.square().sum(-1, True) / 2).exp() / 2 for one in (key, query))  # m = 4
    weights = of_query @ of_key.transpose(1, 2)
    x = value + layer.proj(weights @ value / (weights.sum(-1, keepdim=True) + 1e-8))
    expected = x + layer.mlp(layer.norm2(x))
    assert layer.w.shape == (4, 8)
    torch.testing.assert_close(layer(windows), expected.view(2, 3, 2, 8))


def test_transformer_layer__is_the_published_sequence() -> None:
    torch.manual_seed(0)
    layer, windows = TransformerLayer(4, 9, 8).double(), torch.randn(2, 3, 2, 36, dtype=torch.float64)
    query, key, value = layer.attn.qkv(layer.norm1(published_order(windows, 4))).flatten(1, 2).chunk(3, -1)
    weights = (query @ key.transpose(1, 2) / 6).softmax(-1)  # the root of 36 inputs, not of 8 channels
    x = value + layer.attn.proj(weights @ value)
    expected = x + layer.mlp(layer.norm2(x))
    torch.testing.assert_close(layer(windows), expected.view(2, 3, 2, 8))


def test_performer_layer__attends_in_single_precision_under_autocast() -> None:
    torch.manual_seed(0)
    layer, windows = PerformerLayer(4, 9, 16).eval(), torch.randn(2, 3, 2, 36)
    torch.nn.init.zeros_(layer.mlp[2].weight)  # the MLP may be in half precision
    torch.nn.init.zeros_(layer.mlp[2].bias)
    with torch.no_grad():
        exact = layer(windows)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(layer(windows), exact)
            assert layer.mlp[0](exact).dtype == torch.bfloat16


def test_sinusoid__alternates_sine_and_cosine_over_tokens_in_a_row() -> None:
    table = sinusoid(5, 6)
    for place in range(5):
        for entry in range(6):
            angle = place / 10000 ** (2 * (entry // 2) / 6)
            expected = math.cos(angle) if entry % 2 else math.sin(angle)
            assert table[0, place, entry] == pytest.approx(expected, abs=1e-7)
