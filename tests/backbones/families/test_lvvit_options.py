"""What each constructor argument of LV-ViT does, against naive computations."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.lvvit import STEMS, LvVit, LvVitAttention, LvVitBlock, LvVitStem

SMALL = {"img_size": 64, "embed_dim": 24, "depth": 2, "num_heads": 3, "stem_width": 8, "num_classes": 5}


def build(**changes: object) -> LvVit:
    torch.manual_seed(1)
    return LvVit(**{**SMALL, **changes}).eval()


def images(*shape: int) -> Tensor:
    return torch.randn(shape or (2, 3, 64, 64), generator=torch.Generator().manual_seed(2))


TABLE = {  # kernels, strides and parameters of the ablation model, from the supplement's table 3 and its text
    "1_conv": ((16,), (16,), 24_405_352),
    "2_conv": ((7, 8), (2, 8), 25_692_840),
    "3_conv_coarse": ((7, 3, 4), (2, 2, 4), 24_550_184),
    "3_conv_coarse_overlap": ((7, 3, 8), (2, 2, 4), 25_729_832),
    "3_conv": ((7, 3, 8), (2, 1, 8), 25_729_832),
    "4_conv": ((7, 3, 3, 8), (2, 1, 1, 8), 25_766_824),
    "6_conv": ((7, 3, 3, 3, 3, 8), (2, 1, 1, 1, 1, 8), 25_840_808),
}


def naive_stem(stem: LvVitStem, x: Tensor, kernels: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    for number, (kernel, stride) in enumerate(zip(kernels[:-1], strides[:-1], strict=True), 1):
        conv, norm = stem.get_submodule(f"conv{number}"), stem.get_submodule(f"bn{number}")
        assert conv.weight.shape[2:] == (kernel, kernel)
        assert conv.bias is None
        x = functional.relu(norm(functional.conv2d(x, conv.weight, stride=stride, padding=kernel // 2)))
    assert stem.proj.weight.shape[2:] == (kernels[-1], kernels[-1])
    padding = (kernels[-1] - strides[-1]) // 2
    return functional.conv2d(x, stem.proj.weight, stem.proj.bias, strides[-1], padding)


@pytest.mark.parametrize("name", list(TABLE))
def test_stem__has_the_convolutions_of_the_table(name: str) -> None:
    kernels, strides, parameters = TABLE[name]
    assert set(TABLE) == set(STEMS)
    with meta_device():
        whole = LvVit(stem=name, skip_lam=1.0, aux_head=False)
    assert sum(p.numel() for p in whole.parameters()) == parameters
    torch.manual_seed(1)
    stem = LvVitStem((64, 96), embed_dim=24, stem=name, width=8).eval()
    x = images(2, 3, 64, 96)
    with torch.no_grad():
        out = stem(x)
        assert out.shape == (2, 24, 4, 6)
        torch.testing.assert_close(out, naive_stem(stem, x, kernels, strides))


def test_stem__width_channels_and_patch_size_are_free() -> None:
    stem = LvVitStem(32, patch_size=4, in_chans=1, embed_dim=6, width=10)
    assert stem.conv1.weight.shape == (10, 1, 7, 7)
    assert stem.proj.weight.shape == (6, 10, 2, 2)
    assert stem.grid_size == (8, 8)
    assert stem(torch.zeros(1, 1, 32, 32)).shape == (1, 6, 8, 8)


@pytest.mark.parametrize("divisor", [1.0, 2.0, 3.0])
def test_skip_lam__divides_both_branches_and_nothing_else(divisor: float) -> None:
    torch.manual_seed(1)
    block = LvVitBlock(24, 3, skip_lam=divisor).eval()
    x = images(2, 7, 24)
    middle = x + block.attn(block.norm1(x)) / divisor
    torch.testing.assert_close(block(x), middle + block.mlp(block.norm2(middle)) / divisor)


@pytest.mark.parametrize("bias", [False, True])
def test_attention__is_that_of_the_heads_on_both_paths(bias: bool) -> None:
    torch.manual_seed(1)
    layer, x = LvVitAttention(24, 3, qkv_bias=bias), images(2, 150, 24).requires_grad_()
    assert (layer.qkv.bias is not None) == bias
    query, key, value = layer.qkv(x).reshape(2, 150, 3, 3, 8).unbind(2)
    logits = torch.einsum("bnhd,bmhd->bhnm", query, key) / 8**0.5
    expected = layer.proj(torch.einsum("bhnm,bmhd->bnhd", logits.softmax(-1), value).flatten(2))
    expected_gradient = torch.autograd.grad(expected.square().sum(), x)[0]
    for fused in (True, False):
        layer.fused_attn = fused
        out = layer(x)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            torch.autograd.grad(out.square().sum(), x)[0], expected_gradient, atol=1e-5, rtol=1e-4
        )


def naive_logits(model: LvVit, x: Tensor, weight: float) -> Tensor:
    tokens = model.forward_features(x)
    pooled = tokens[:, 0] if model.global_pool == "token" else tokens[:, 1:].mean(1)
    best = torch.stack([model.aux_head(row).amax(0) for row in tokens[:, 1:]])
    return model.head(pooled) + weight * best


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("weight", [0.5, 0.25, 0.0])
def test_aux_weight__adds_the_largest_token_logits_in_training_as_well(weight: float, pool: str) -> None:
    model = build(aux_weight=weight, global_pool=pool)
    with torch.no_grad():
        torch.testing.assert_close(model(images()), naive_logits(model, images(), weight))
        class_logits, token_logits = model.dense_logits(model.forward_features(images()))
        assert token_logits.shape == (2, 16, 5)
        torch.testing.assert_close(class_logits, naive_logits(model, images(), 0.0))
        # Batch statistics aside, training gives what evaluation gives.
        model.train()
        model.patch_embed.eval()
        torch.testing.assert_close(model(images()), naive_logits(model, images(), weight))


def test_aux_head__left_out_leaves_the_class_logits() -> None:
    model, whole = build(aux_head=False), build()
    model.load_state_dict({name: value for name, value in whole.state_dict().items() if "aux" not in name})
    with torch.no_grad():
        assert torch.equal(model(images()), whole.dense_logits(whole.forward_features(images()))[0])
    assert model.get_classifier() is model.head
    with pytest.raises(ValueError, match="build it with aux_head=True"):
        model.dense_logits(model.forward_features(images()))


def test_global_pool__none_gives_every_token() -> None:
    assert build(global_pool="")(images()).shape == (2, 17, 5)
    assert build(num_classes=0)(images()).shape == (2, 24)


def test_dynamic_img_size__resamples_positions_as_a_change_of_size_does() -> None:
    fixed, dynamic, x = build(), build(dynamic_img_size=True), images(2, 3, 48, 96)
    with pytest.raises(ValueError, match=r"3x6 patches, but the model is built for 4x4 \(64x64 pixels\)"):
        fixed(x)
    before = fixed.pos_embed.detach().clone()
    fixed.set_input_size((48, 96))
    assert fixed.pos_embed.shape == (1, 19, 24)
    assert torch.equal(fixed.pos_embed[:, 0], before[:, 0])
    expected = functional.interpolate(before[:, 1:].mT.reshape(1, 24, 4, 4), (3, 6), mode="bicubic")
    torch.testing.assert_close(fixed.pos_embed[:, 1:], expected.flatten(2).mT)
    with torch.no_grad():
        assert torch.equal(fixed(x), dynamic(x))


@pytest.mark.parametrize("size", [288, 384, 448, 512])
def test_set_input_size__takes_the_published_sizes(size: int) -> None:
    model = LvVit(embed_dim=12, depth=1, num_heads=3, num_classes=2, stem_width=4).eval()
    model.set_input_size(size)
    assert model.pos_embed.shape == (1, 1 + (size // 16) ** 2, 12)
    assert model.patch_embed.grid_size == (size // 16, size // 16)
    assert model(torch.zeros(1, 3, size, size)).shape == (1, 2)


def test_set_input_size__of_as_many_cells_resamples_too() -> None:
    model = build()
    before = model.pos_embed.detach().clone()
    model.set_input_size((32, 128))
    assert model.pos_embed.shape == before.shape
    assert not torch.equal(model.pos_embed, before)


@pytest.mark.parametrize("rate", ["drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"])
def test_rates__act_in_training_alone(rate: str) -> None:
    model, plain = build(**{rate: 0.5}), build()
    with torch.no_grad():
        torch.testing.assert_close(model(images()), plain(images()))
        model.train()
        model.patch_embed.eval()
        assert not torch.allclose(model(images()), plain(images()), atol=1e-3)


def test_drop_path_rate__grows_linearly_over_the_blocks() -> None:
    blocks = build(depth=3, drop_path_rate=0.2).blocks
    assert isinstance(blocks[0].drop_path1, nn.Identity)
    rates = [[block.drop_path1.drop_prob, block.drop_path2.drop_prob] for block in blocks[1:]]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor([[0.1, 0.1], [0.2, 0.2]]))


def test_mlp_ratio_and_qkv_bias__shape_the_blocks() -> None:
    block = build(mlp_ratio=2.0, qkv_bias=True).blocks[0]
    assert block.mlp.fc1.weight.shape == (48, 24)
    assert block.attn.qkv.bias.shape == (72,)


WRONG = [
    ({"stem": "5_conv"}, "stem is '5_conv'; choose one of 1_conv, 2_conv"),
    ({"patch_size": 7}, "patch_size is 7; with the stem '4_conv' it must be a multiple of 2"),
    ({"stem": "3_conv_coarse_overlap", "patch_size": 4}, "it must be a multiple of 8"),
    ({"img_size": (64, 72)}, "images have 64x72 pixels; both sides must be multiples of the patch of 16"),
    ({"num_heads": 5}, "embed_dim is 24, but must be a multiple of num_heads, which is 5"),
    ({"depth": 0}, "depth is 0"),
    ({"skip_lam": 0}, "skip_lam is 0"),
    ({"aux_weight": -1.0}, "aux_weight is -1.0"),
    ({"aux_weight": float("nan")}, "aux_weight is nan"),
    ({"global_pool": "max"}, "global_pool is 'max'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_constructor__refuses_what_makes_no_model(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_forward__refuses_images_that_do_not_divide_into_patches() -> None:
    with pytest.raises(ValueError, match="images have 64x60 pixels; both sides must be multiples of the patch of 16"):
        build()(images(1, 3, 64, 60))
