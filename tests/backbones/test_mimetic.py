"""Mimetic initialisation: the products of weights that the paper prescribes."""

import pytest
import timm
import torch

from paucal.backbones.mimetic import init_mimetic
from paucal.types import UserError


def drawn(name: str, seed: int = 0, **arguments):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3, **arguments)
    return model, init_mimetic(model, torch.Generator().manual_seed(seed))


def vit(seed: int = 0):
    return drawn("vit_tiny_cifar_patch4", seed, embed_dim=192, depth=2, num_heads=2)


def test_value_and_output__are_minus_the_identity_and_noise():
    model, count = vit()
    assert count == 2
    layer = model.blocks[1].attn
    product = layer.qkv.weight[384:].T @ layer.proj.weight.T
    noise = product + 0.4 * torch.eye(192)
    assert noise.mean().abs() < 1e-3
    assert noise.std().item() == pytest.approx(0.4 / 192**0.5, rel=0.02)
    assert noise.diagonal().mean().abs() < 0.01
    assert not any(bias.any() for bias in (layer.qkv.bias, layer.proj.bias))


def test_query_and_key__are_the_best_approximation_of_the_identity_and_noise_per_head():
    layer, generator = vit()[0].blocks[0].attn, torch.Generator().manual_seed(0)
    for head in range(2):
        wanted = 0.7 * torch.randn(192, 192, generator=generator) / 192**0.5 + 0.7 * torch.eye(192)
        rows = slice(96 * head, 96 * head + 96)
        product = layer.qkv.weight[rows].T @ layer.qkv.weight[192:384][rows]
        left, values, right = torch.linalg.svd(wanted)
        best = left[:, :96] @ torch.diag(values[:96]) @ right[:96]
        torch.testing.assert_close(product, best, atol=1e-5, rtol=1e-4)
    assert product.diagonal().mean() > 10 * product.mean().abs()


def test_tokens__that_are_alike_attend_to_each_other():
    # What the identity is for: the logit of a token with itself is above those with unrelated ones.
    layer = vit()[0].blocks[0].attn
    tokens = torch.randn(64, 192, generator=torch.Generator().manual_seed(1))
    query, key = layer.qkv(tokens).chunk(3, -1)[:2]
    logits = query @ key.T
    assert logits.diagonal().mean() > 3 * logits.std()


@pytest.mark.parametrize(
    ("name", "arguments", "layers"),
    [
        ("swin_tiny_patch4_window7_224", {"embed_dim": 24, "depths": (1, 1), "num_heads": (1, 2), "img_size": 56}, 2),
        ("dhvt_tiny_cifar_patch4", {"embed_dim": 32, "depth": 2, "num_heads": 2}, 2),
    ],
)
def test_other_families__are_drawn_too_and_by_the_seed_alone(name, arguments, layers):
    model, count = drawn(name, **arguments)
    assert count == layers
    again, other = drawn(name, **arguments)[0], drawn(name, 1, **arguments)[0]
    weights = [dict(m.named_parameters()) for m in (model, again, other)]
    changed = {n for n in weights[0] if not torch.equal(weights[0][n], weights[2][n])}
    assert changed
    assert all(n.endswith(("qkv.weight", "proj.weight")) for n in changed)
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])


def test_model_without_attention__is_refused():
    with pytest.raises(UserError, match=r"--attention-init mimetic needs attention .* which ResNet does not have"):
        drawn("test_resnet")
