"""DrLoc's CvT: its norm, its shared convolution of keys and values, its plain initialisation."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from backbones.families.cvt_parts import SMALL, convolved, images, stirred
from paucal.backbones.families.cvt_drloc import DeviationNorm, DrlocCvt, SharedConvAttention


def small(**arguments) -> DrlocCvt:
    torch.manual_seed(0)
    return stirred(DrlocCvt(**{**SMALL, **arguments})).eval()


def reference(x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    deviation = x.var(-1, unbiased=False, keepdim=True).sqrt()
    return (x - x.mean(-1, keepdim=True)) / (deviation + 1e-5) * gain + shift


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_norm__divides_by_the_deviation_plus_eps_in_value_and_gradient(scale: float) -> None:
    torch.manual_seed(0)
    norm = DeviationNorm(6).double()
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    x = (torch.randn(2, 5, 6, dtype=torch.float64) * scale).requires_grad_()
    expected = reference(x, norm.weight, norm.bias)
    torch.testing.assert_close(norm(x), expected)
    toward = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, norm.weight, norm.bias), toward)
    for one, other in zip(torch.autograd.grad(norm(x), (x, norm.weight, norm.bias), toward), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_norm__has_the_gradient_of_its_mathematics_at_constant_channels() -> None:
    norm, toward = DeviationNorm(4), torch.tensor([[[1.0, 2.0, 3.0, 6.0]]])
    x = torch.full((1, 1, 4), 0.5, requires_grad=True)
    out = norm(x)
    assert torch.equal(out, torch.zeros(1, 1, 4))
    (gradient,) = torch.autograd.grad(out, x, toward)
    torch.testing.assert_close(gradient, (toward - 3) / 1e-5)
    bad = torch.full((1, 1, 4), 0.5, requires_grad=True)
    (original,) = torch.autograd.grad(reference(bad, norm.weight, norm.bias), bad, toward)
    assert original.isnan().all()


def test_norm__is_computed_in_float32() -> None:
    x = (torch.arange(8.0) * 1e-4).half().reshape(1, 1, 8)  # whose squares are zero in half precision
    out = DeviationNorm(8)(x)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), DeviationNorm(8)(x.float()), rtol=1e-3, atol=1e-3)


def test_eps_in_root__makes_the_norms_layer_norms() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8) * 1e-3
    inside, outside = small(eps_in_root=True).stages[0].blocks[0].norm1, small().stages[0].blocks[0].norm1
    expected = functional.layer_norm(x, (8,), inside.weight, inside.bias, 1e-5)
    torch.testing.assert_close(inside(x), expected)
    with torch.no_grad():
        outside.weight.copy_(inside.weight)
        outside.bias.copy_(inside.bias)
    assert (outside(x) - expected).abs().max() > 0.1
    small(eps_in_root=True).load_state_dict(small().state_dict())


def test_attention__shares_a_convolution_between_keys_and_values() -> None:
    torch.manual_seed(0)
    grid, width, heads = (5, 4), 12, 3
    layer, tokens = stirred(SharedConvAttention(width, heads)).eval(), torch.randn(2, 20, width)
    cells = tokens.transpose(1, 2).reshape(2, width, *grid)
    query = convolved(layer.conv_proj_q, cells, 1) @ layer.proj_q.weight.T
    key, value = (convolved(layer.conv_proj_kv, cells, 2) @ layer.proj_kv.weight.T).chunk(2, -1)
    parts = []
    for head in range(heads):
        own = slice(head * 4, head * 4 + 4)
        weights = (query[..., own] @ key[..., own].transpose(1, 2) / 4**0.5).softmax(-1)
        parts.append(weights @ value[..., own])
    torch.testing.assert_close(layer(tokens, grid), layer.proj(torch.cat(parts, -1)))


def test_attention__is_equal_on_both_paths_and_in_its_gradients() -> None:
    layer, tokens = SharedConvAttention(12, 3), torch.randn(2, 20, 12)
    results = []
    for fused in (True, False):
        layer.fused_attn = fused
        out = layer(tokens, (5, 4))
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in layer.parameters())])
        layer.zero_grad()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_forward__classifies_the_mean_of_the_last_map_without_norm_or_class_token() -> None:
    model, x = small(), images()
    with torch.no_grad():
        features, (last,) = model.forward_features(x), model.forward_intermediates(x, 1, intermediates_only=True)
        assert features.shape == (2, 24, 2, 3)
        assert torch.equal(features, last)
        torch.testing.assert_close(model(x), model.head(features.mean((2, 3))))
    assert model(images(1, 1)).shape == (2, 3)  # any size: the first convolution pads by its whole half
    assert model.no_weight_decay() == set()
    assert all(p.ndim < 2 for name, p in model.named_parameters() if "norm" in name)


def test_start__is_torchs_own() -> None:
    model = DrlocCvt(**{**SMALL, "embed_dims": (8, 16, 300)})
    for _ in range(2):
        assert model.head.weight.abs().max() <= 300**-0.5  # uniform; the frame's is normal around zero
        assert model.head.weight.std().item() == pytest.approx((3 * 300) ** -0.5, rel=0.1)
        assert model.head.bias.any()
        model.reset_classifier(3)


def test_stochastic_depth__grows_over_all_blocks() -> None:
    model = DrlocCvt(**SMALL, drop_path_rate=0.3)
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
