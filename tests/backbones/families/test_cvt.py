"""The official CvT: its attention, class token, stochastic depth and sizes."""

import pytest
import timm
import torch
from torch import nn

from backbones.families.cvt_parts import SMALL, convolved, images, stirred
from paucal.backbones import FeatureBackbone
from paucal.backbones.families.cvt import ConvAttention, Cvt, QuickGelu, as_map


def small(seed: int = 0, **arguments) -> Cvt:
    torch.manual_seed(seed)
    return stirred(Cvt(**{**SMALL, **arguments})).eval()


@pytest.mark.parametrize("prefix", [0, 1])
def test_attention__is_the_papers_with_a_class_token_that_bypasses_the_convolutions(prefix: int) -> None:
    torch.manual_seed(0)
    grid, width, heads = (5, 4), 12, 3
    layer = stirred(ConvAttention(width, heads, prefix)).eval()
    tokens = torch.randn(2, prefix + 20, width)
    cells = tokens[:, prefix:].transpose(1, 2).reshape(2, width, *grid)
    inputs = [
        torch.cat((tokens[:, :prefix], convolved(part, cells, stride)), 1)
        for part, stride in ((layer.conv_proj_q, 1), (layer.conv_proj_k, 2), (layer.conv_proj_v, 2))
    ]
    query, key, value = (proj(x) for proj, x in zip((layer.proj_q, layer.proj_k, layer.proj_v), inputs, strict=True))
    assert key.shape[1] == prefix + 6
    parts = []
    for head in range(heads):
        own = slice(head * 4, head * 4 + 4)
        weights = (query[..., own] @ key[..., own].transpose(1, 2) / width**0.5).softmax(-1)
        parts.append(weights @ value[..., own])
    torch.testing.assert_close(layer(tokens, grid), layer.proj(torch.cat(parts, -1)))


def test_attention__is_equal_on_both_paths_and_in_its_gradients() -> None:
    layer, tokens = ConvAttention(12, 3, 1), torch.randn(2, 21, 12)
    results = []
    for fused in (True, False):
        layer.fused_attn = fused
        x = tokens.clone().requires_grad_()
        out = layer(x, (5, 4))
        out.square().sum().backward()
        results.append([out.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())])
        layer.zero_grad()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_map__is_a_view_that_convolutions_need_not_copy() -> None:
    tokens = torch.randn(2, 20, 12)
    cells = as_map(tokens, (5, 4))
    assert cells.data_ptr() == tokens.data_ptr()
    assert cells.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(cells[1, :, 3, 2], tokens[1, 3 * 4 + 2])


def test_quick_gelu__is_x_times_a_sigmoid_in_value_and_gradient() -> None:
    x = torch.linspace(-8, 8, 101, requires_grad=True)
    expected = x * torch.sigmoid(1.702 * x)
    torch.testing.assert_close(QuickGelu()(x), expected)
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    (found,) = torch.autograd.grad(QuickGelu()(x).sum(), x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("gradients", [True, False])
def test_quick_gelu__leaves_its_input_as_it_is(gradients: bool) -> None:
    x = torch.linspace(-8, 8, 101)
    with torch.set_grad_enabled(gradients):
        found = QuickGelu()(x)
    assert torch.equal(x, torch.linspace(-8, 8, 101))
    torch.testing.assert_close(found, x * torch.sigmoid(1.702 * x))


def test_class_token__lives_in_the_last_stage_and_is_what_is_classified() -> None:
    model, x = small(), images()
    assert [stage.cls_token is not None for stage in model.stages] == [False, False, True]
    assert model.no_weight_decay() == {"stages.2.cls_token"}
    with torch.no_grad():
        features = model.forward_features(x)
        assert features.shape == (2, 1 + 2 * 3, 24)
        torch.testing.assert_close(model(x), model.head(features[:, 0]))
        mean = small(global_pool="avg")
        torch.testing.assert_close(mean(x), mean.head(features[:, 1:].mean(1)))
        before = model(x)
        model.stages[2].cls_token[..., 0] += 1  # not all of them: a norm takes that away
        assert (model(x) - before).abs().max() > 1e-3


def test_features__pool_the_class_token() -> None:
    model, x = small(), images()
    with torch.no_grad():
        features = FeatureBackbone(model, (32, 48))(x)
        torch.testing.assert_close(features.pooled, model.forward_features(x)[:, 0])


def test_stochastic_depth__grows_over_the_last_stage_alone_and_is_shared_by_both_branches() -> None:
    model = timm.create_model("cvt_13", **{**SMALL, "depths": (1, 2, 3)})
    rates = [[getattr(block.drop_path, "drop_prob", 0.0) for block in stage.blocks] for stage in model.stages]
    assert rates == [[0.0], [0.0, 0.0], pytest.approx([0.0, 0.05, 0.1])]
    calls: list[int] = []
    model.stages[2].blocks[2].drop_path.register_forward_hook(lambda *_: calls.append(1))
    model(images())
    assert len(calls) == 2


@pytest.mark.parametrize(("size", "grid"), [((3, 3), (1, 1)), ((30, 45), (2, 3)), ((64, 33), (4, 2))])
def test_forward__takes_any_size(size: tuple[int, int], grid: tuple[int, int]) -> None:
    model = small()
    with torch.no_grad():
        final, maps = model.forward_intermediates(images(*size, count=1), norm=True)
        assert maps[-1].shape == (1, 24, *grid)
        torch.testing.assert_close(maps[-1].flatten(2).transpose(1, 2), final[:, 1:])
        assert model(images(*size, count=1)).shape == (1, 3)


def test_forward__refuses_images_smaller_than_its_kernel() -> None:
    with pytest.raises(ValueError, match="2x8 pixels; each side must be 3 or more"):
        small()(images(2, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": (1, 3, 3)}, "embed_dims has 16, which is not a multiple of 3"),
        ({"depths": (1, 2)}, "depths 2 and num_heads 3; give one entry of each per stage"),
        ({"depths": (1, 0, 1)}, r"depths is \(1, 0, 1\)"),
        ({"mlp_ratio": 0.01}, "mlp_ratio is 0.01"),
        ({"drop_path_rate": 1.0}, "drop_path_rate is 1.0"),
        ({"global_pool": "max"}, "global_pool is 'max'"),
    ],
)
def test_constructor__refuses_what_makes_no_model(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cvt(**{**SMALL, **arguments})


def test_dropout__acts_in_training_where_it_is_asked_for() -> None:
    for name in ("drop_rate", "proj_drop_rate", "attn_drop_rate"):
        model, x = small(**{name: 0.5}), images()
        for part in model.modules():  # else the statistics of the batch would differ as well
            part.training = not isinstance(part, nn.BatchNorm2d)
        with torch.no_grad():
            assert not torch.allclose(model(x), model(x))
            assert torch.equal(small(**{name: 0.5})(x), small()(x))


def test_gradients__reach_all_but_the_last_query_convolution_from_the_class_token() -> None:
    x, silent = images(64, 64, 4), "stages.2.blocks.1.attn.conv_proj_q."
    for pool, expected in (("token", True), ("avg", False)):
        model = small(global_pool=pool).train()
        model(x).square().sum().backward()
        names = {name for name, p in model.named_parameters() if not p.grad.any()}
        assert any(name.startswith(silent) for name in names) is expected
        assert all(name.startswith(silent) or name.endswith("bias") for name in names)


def test_checkpoints__leave_gradients_and_running_statistics_as_they_were() -> None:
    results = []
    for saving in (False, True):
        model = small().train()
        model.set_grad_checkpointing(saving)
        model(images(64, 64)).square().sum().backward()
        results.append({**{n: p.grad for n, p in model.named_parameters()}, **dict(model.named_buffers())})
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, msg=lambda text, name=name: f"{name}: {text}")
