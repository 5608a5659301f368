"""Shifted patches and locality self-attention against plain loops, and within the registered ViTs."""

import pytest
import timm
import torch

import paucal.backbones  # noqa: F401 (registers the models)
from paucal.backbones.attention_maps import recorded_attention
from paucal.backbones.families.spt_lsa import LocalityAttention, ShiftedPatchEmbed, with_shifted
from paucal.training.groups import undecayed_parameters


def vit(**arguments):
    torch.manual_seed(0)
    sizes = {"img_size": 16, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_cifar_patch4", **{**sizes, **arguments}).eval()


def test_shifted__pixels_come_from_the_diagonal_neighbours_and_zeros_from_outside():
    images = torch.randn(2, 3, 6, 8)
    shifted = with_shifted(images, 2).reshape(2, 5, 3, 6, 8)
    for number, (down, right) in enumerate([(0, 0), (-2, -2), (-2, 2), (2, -2), (2, 2)]):
        for y in range(6):
            for x in range(8):
                inside = 0 <= y + down < 6 and 0 <= x + right < 8
                expected = images[:, :, y + down, x + right] if inside else torch.zeros(2, 3)
                assert torch.equal(shifted[:, number, :, y, x], expected)


def test_patches__are_normed_as_a_whole_and_projected():
    torch.manual_seed(0)
    embed = ShiftedPatchEmbed(8, 4, 3, 16)
    images = torch.randn(2, 3, 8, 8)
    norm, projection = embed.proj[1], embed.proj[2]
    with torch.no_grad():
        norm.weight.uniform_(), norm.bias.uniform_()
        tokens = embed(images)
        cut = with_shifted(images, 2)[:, :, 4:8, 0:4].reshape(2, -1)  # the third patch, row by row
        normed = torch.nn.functional.layer_norm(cut, (240,), norm.weight, norm.bias)
        expected = normed @ projection.weight.reshape(16, 240).T + projection.bias
    torch.testing.assert_close(tokens[:, 2], expected)


def test_attention__is_a_softmax_over_the_others_with_a_factor_per_head():
    torch.manual_seed(0)
    layer, x = LocalityAttention(8, 2, qkv_bias=True), torch.randn(2, 5, 8)
    assert layer.temperature.tolist() == [0.5, 0.5]
    with torch.no_grad():
        layer.temperature.copy_(torch.tensor([0.3, 2.0]))
        query, key, value = layer.qkv(x).chunk(3, -1)
        outputs = torch.zeros(2, 5, 8)
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            for token in range(5):
                others = [other for other in range(5) if other != token]
                products = (query[:, token, None, part] * key[:, others, part]).sum(-1) * layer.temperature[head]
                outputs[:, token, part] = (products.softmax(-1)[..., None] * value[:, others, part]).sum(1)
        expected = layer.proj(outputs)
        layer.fused_attn = True
        torch.testing.assert_close(layer(x), expected)
        layer.fused_attn = False
        torch.testing.assert_close(layer(x), expected)


def test_attention__refuses_a_mask():
    with pytest.raises(ValueError, match="a mask of its own"):
        LocalityAttention(8, 2)(torch.zeros(1, 3, 8), torch.ones(3, 3))


def test_vit__takes_both_parts_and_no_token_sees_itself():
    model, images = vit(shifted_patches=True, locality_attention=True), torch.randn(2, 3, 16, 16)
    with recorded_attention(model) as maps, torch.no_grad():
        explicit = model(images)
    with torch.no_grad():
        torch.testing.assert_close(model(images), explicit)
    assert len(maps) == 2
    for weights in maps.values():
        assert not weights.diagonal(dim1=-2, dim2=-1).any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert model.get_submodule(model.pretrained_cfg["first_conv"]).in_channels == 240
    assert {"blocks.0.attn.temperature", "patch_embed.proj.1.weight"} <= set(undecayed_parameters(model))


def test_vit__without_them_is_timms():
    assert {name for name, _ in vit().named_parameters()} == {
        name for name, _ in timm.create_model("vit_tiny_patch16_224", depth=2).named_parameters()
    }


def test_odd_patches__are_refused():
    with pytest.raises(ValueError, match="patch_size is 5; shifted patches need an even number"):
        vit(shifted_patches=True, img_size=15, patch_size=5)
