"""Attention maps against naive computations, and what is read from them."""

import math

import pytest
import timm
import torch
from torch import Tensor, nn

import paucal.backbones  # noqa: F401 (registers our models)
from contracts.reduced_models import reduced
from paucal.backbones.attention_layout import AttentionCall, Tokens
from paucal.explain.attention.heads import entropy, entropy_over, mass_mask, mean_entropy, view_heads
from paucal.explain.attention.maps import AttentionMap, averaged, fold_head_tokens, head_token_maps
from paucal.explain.attention.reading import add_positions, read_attention
from paucal.explain.attention.rollout import attention_rollout
from paucal.explain.prepared import prepare_for_hooks
from paucal.types import UserError

SIZE = (32, 48)
FULL = {
    "vit_tiny_patch16_224": {"depth": 2, "img_size": SIZE, "patch_size": 8, "embed_dim": 24, "num_heads": 3},
    "deit_tiny_distilled_patch16_224": {
        "depth": 2,
        "img_size": SIZE,
        "patch_size": 8,
        "embed_dim": 24,
        "num_heads": 3,
    },
    "vit_small_patch14_reg4_dinov2": {
        "depth": 2,
        "img_size": SIZE,
        "patch_size": 8,
        "embed_dim": 24,
        "num_heads": 3,
        "num_classes": 3,
    },
    "lvvit_t": {"depth": 2, "img_size": SIZE, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "stem_width": 8},
    "dhvt_mini": {"depth": 2, "img_size": SIZE, "patch_size": 8, "embed_dim": 24, "num_heads": 3},
}
PREFIXES = {
    "vit_tiny_patch16_224": ("class",),
    "deit_tiny_distilled_patch16_224": ("class", "distillation"),
    "vit_small_patch14_reg4_dinov2": ("class", "register 1", "register 2", "register 3", "register 4"),
    "lvvit_t": ("class",),
    "dhvt_mini": ("class",),
}
SWINS = ("swin_tiny_patch4_window7_224", "esvit_swin_tiny_patch4_window7_224")


def build(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    for parameter in model.parameters():  # attention far from even
        parameter.data.mul_(3.0 if parameter.ndim > 1 else 1.0)
    return model


def images(size: tuple[int, int] = SIZE, count: int = 2) -> Tensor:
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


def inputs_of(model: nn.Module, name: str, x: Tensor) -> Tensor:
    kept: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_pre_hook(lambda module, given: kept.append(given[0]))
    with torch.no_grad():
        model(x)
    handle.remove()
    return kept[0]


@pytest.mark.parametrize("name", FULL)
def test_full_attention__is_the_naive_one_and_its_tokens_are_named(name: str) -> None:
    model = build(name, **FULL[name])
    maps = read_attention(model, images())
    assert [one.layer for one in maps] == ["blocks.0.attn", "blocks.1.attn"]
    last = maps[-1]
    assert (last.tokens.grid, last.tokens.prefix) == ((4, 6), PREFIXES[name])
    layer, tokens = model.get_submodule(last.layer), inputs_of(model, last.layer, images())
    with torch.no_grad():
        if name == "dhvt_mini":
            assert last.tokens.suffix == ("head 1", "head 2", "head 3")
            tokens = torch.cat((tokens, layer.to_head_tokens(tokens)), 1)  # type: ignore[operator]
        qkv = layer.qkv(tokens)  # type: ignore[operator]
        expected = torch.zeros(2, 3, tokens.shape[1], tokens.shape[1])
        for head in range(3):
            query, key = qkv[..., head * 8 : head * 8 + 8], qkv[..., 24 + head * 8 : 32 + head * 8]
            expected[:, head] = (query @ key.transpose(1, 2) / math.sqrt(8)).softmax(-1)
    torch.testing.assert_close(last.dense(), expected, rtol=1e-4, atol=1e-6)
    place_of_cell = len(PREFIXES[name]) + 2 * 6 + 5
    torch.testing.assert_close(last.row((2, 5)), expected[:, :, place_of_cell], rtol=1e-4, atol=1e-6)
    cells = expected[:, :, 0, len(PREFIXES[name]) : len(PREFIXES[name]) + 24].reshape(2, 3, 4, 6)
    torch.testing.assert_close(last.cell_map("class"), cells, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SWINS)
def test_shifted_windows__are_stitched_to_the_naive_attention(name: str) -> None:
    options = {"img_size": (16, 24), "patch_size": 2, "embed_dim": 8, "depths": (2,), "num_heads": (2,)}
    model = build(name, window_size=4, num_classes=3, **options)
    found = read_attention(model, images((16, 24)))[1]
    block = model.get_submodule("layers.0.blocks.1")
    assert tuple(block.shift_size) == (2, 2)  # type: ignore[arg-type]
    assert found.tokens.grid == (8, 12)
    with torch.no_grad():
        cells = block.norm1(inputs_of(model, "layers.0.blocks.1", images((16, 24))))  # type: ignore[operator]
        query, key, _ = block.attn.qkv(cells.flatten(1, 2)).chunk(3, 2)  # type: ignore[union-attr, operator]
        table = block.attn.relative_position_bias_table  # type: ignore[union-attr]
        expected = torch.full((2, 2, 96, 96), -torch.inf)
        for one in range(96):
            for two in range(96):
                if region(one) == region(two):
                    down, across = one // 12 - two // 12, one % 12 - two % 12
                    for head in range(2):
                        part = slice(4 * head, 4 * head + 4)
                        product = (query[:, one, part] * key[:, two, part]).sum(1) / 2
                        bias = table[(down + 3) * 7 + across + 3, head]  # type: ignore[index]
                        expected[:, head, one, two] = product + bias
    torch.testing.assert_close(found.dense(), expected.softmax(-1), rtol=1e-4, atol=1e-6)


def region(cell: int) -> tuple[int, int]:
    """The piece of a shifted 4x4 window that a cell of an 8x12 grid shares: the borders' pieces are their own."""
    return (cell // 12 + 2) // 4, (cell % 12 + 2) // 4


@pytest.mark.parametrize("name", SWINS)
def test_padded_windows__point_to_the_place_that_was_meant(name: str) -> None:
    options = {"img_size": (20, 28), "patch_size": 2, "embed_dim": 8, "depths": (2,), "num_heads": (1,)}
    model = build(name, window_size=4, num_classes=3, **options)
    block = model.get_submodule("layers.0.blocks.1")
    height, width, down, across = 10, 14, 3, 4
    weights = torch.zeros(down * across, 1, 16, 16)
    generator = torch.Generator().manual_seed(3)
    targets = torch.randint(16, (down * across, 16), generator=generator)
    weights[:, 0].scatter_(2, targets[:, :, None], 1.0)
    call = AttentionCall((block.attn, block, model), (), (torch.zeros(1, height, width, 8),))  # type: ignore[arg-type]
    found = add_positions("attn", weights, call, images((20, 28), 1))
    assert found is not None

    def cell(window: int, slot: int) -> tuple[int, int] | None:
        row, column = window // across * 4 + slot // 4, window % across * 4 + slot % 4
        if name.startswith("esvit"):  # padded, then shifted
            row, column = (row + 2) % 12, (column + 2) % 16
            return (row, column) if row < height and column < width else None
        return ((row + 2) % height, (column + 2) % width) if row < height and column < width else None

    seen = 0
    for window in range(down * across):
        for slot in range(16):
            query, key = cell(window, slot), cell(window, int(targets[window, slot]))
            if query is None:
                continue
            seen += 1
            row = found.cell_map(query)[0, 0]
            assert float(row.sum()) == (0.0 if key is None else 1.0)
            assert key is None or float(row[key]) == 1.0
    assert seen == height * width


OTHERS = {
    "pvt_v2_b0": {"depths": (1, 1, 1, 1)},
    "cvt_13": reduced("cvt_13").arguments,
    "esvit_cvt_tiny": reduced("esvit_cvt_tiny").arguments,
    "cait_xxs24_224": {"depth": 2, "img_size": 64},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_families__have_rows_of_sum_one_and_flow_like_matrices(name: str) -> None:
    model = build(name, num_classes=3, **OTHERS[name])
    maps = read_attention(model, images((64, 64)))
    assert len(maps) >= 2
    for one in maps:
        share = torch.rand(2, len(one.tokens))
        dense = one.dense()
        torch.testing.assert_close(one.flow(share), torch.einsum("bq,bqk->bk", share, dense.mean(1)))
        asked = dense[:, :, 0].sum(-1)
        assert float(asked.max()) <= 1 + 1e-4
        assert float(asked.min()) > 0.01


def test_rollout__is_the_product_of_the_layers() -> None:
    name = "vit_tiny_patch16_224"
    model = build(name, **FULL[name])
    whole = torch.eye(25).expand(2, 25, 25)
    for one in read_attention(model, images()):
        whole = (0.5 * one.dense().mean(1) + 0.5 * torch.eye(25)) @ whole
    torch.testing.assert_close(attention_rollout(model, images()), whole[:, 0, 1:].reshape(2, 4, 6))


def test_rollout__of_stages_keeps_the_whole_share() -> None:
    options = {"img_size": (32, 48), "patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2)}
    found = attention_rollout(build(SWINS[0], window_size=4, num_classes=3, **options), images())
    assert found.shape == (2, 16, 24)
    torch.testing.assert_close(found.sum((1, 2)), torch.ones(2))


def test_head_tokens__are_read_in_their_own_heads_and_folded_without_loss() -> None:
    model = build("dhvt_mini", **FULL["dhvt_mini"])
    last = read_attention(model, images())[-1]
    dense = last.dense()
    maps = head_token_maps(last)
    for head in range(3):
        torch.testing.assert_close(maps[:, head].flatten(1), dense[:, head, 25 + head, 1:25])
    torch.testing.assert_close(averaged(last), dense.mean(1))
    mean, summed = fold_head_tokens(last, average=True), fold_head_tokens(last, average=False)
    assert mean.tokens.suffix == ()
    rows = torch.ones(2, 3, 25)
    rows[:, :, 0] = 2  # the class token's own row and the mean of those of the head tokens
    torch.testing.assert_close(mean.dense().sum(-1), rows)
    rows[:, :, 0] = 4
    torch.testing.assert_close(summed.dense().sum(-1), rows)
    naive = dense[:, :, 7, :25] + dense[:, :, 7, 25:].sum(-1, keepdim=True) / 25
    torch.testing.assert_close(mean.dense()[:, :, 7], naive)


def test_entropy__survives_zeros_and_sorts_heads() -> None:
    weights = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(entropy(weights), torch.tensor([0.0, 2.0, 1.0]))
    tokens, places = Tokens((2, 2)), torch.arange(4)[None]
    one = AttentionMap("layer", weights[None, None, :, None].expand(1, 1, 3, 4, 4), tokens, tokens, places, places)
    view = view_heads(one, (0, 0))
    assert view.heads.tolist() == [1, 2, 0]
    assert view.masks.sum((1, 2)).tolist() == [3, 2, 1]
    torch.testing.assert_close(mean_entropy(one), torch.tensor([0.0, 2.0, 1.0]))


def test_mass_mask__holds_the_mass_with_the_fewest_cells() -> None:
    values = torch.rand(5, 49, generator=torch.Generator().manual_seed(0))
    masks = mass_mask(values, 0.6)
    for row, mask in zip(values, masks, strict=True):
        ordered, total = sorted(row.tolist(), reverse=True), float(row.sum())
        count = next(n for n in range(1, 50) if sum(ordered[:n]) >= 0.6 * total)
        assert int(mask.sum()) == count
        assert set(row[mask].tolist()) == set(ordered[:count])


def test_entropy_over_data__is_the_mean_of_the_images() -> None:
    name = "vit_tiny_patch16_224"
    model = build(name, **FULL[name])
    parts = entropy_over(model, [images(count=3)[:1], images(count=3)[1:]])
    whole = entropy_over(model, [images(count=3)])
    for layer, bits in whole.items():
        torch.testing.assert_close(parts[layer], bits)
        assert bits.shape == (3,)


def test_bad_input__is_told_in_one_sentence() -> None:
    name = "vit_tiny_patch16_224"
    model = build(name, **FULL[name])
    with pytest.raises(UserError, match="resnet18 has no attention weights to read"):
        read_attention(build("resnet18", num_classes=2), images())
    with pytest.raises(UserError, match="does not support images of 40x48 pixels"):
        read_attention(model, images((40, 48)))
    with pytest.raises(UserError, match=r"expected float \(B, 3, height, width\)"):
        read_attention(model, torch.zeros(1, 1, *SIZE))
    with pytest.raises(UserError, match=r"no attention layer 'blocks\.7': choose from blocks.0.attn"):
        read_attention(model, images(), ["blocks.7"])
    last = read_attention(model, images())[-1]
    with pytest.raises(UserError, match=r"\(4, 0\) is outside the grid of 4x6 cells"):
        last.row((4, 0))
    with pytest.raises(UserError, match="the layer has no token 'register 1'; its named tokens are: class"):
        last.row("register 1")
    with pytest.raises(UserError, match="has no head tokens"):
        head_token_maps(last)


@pytest.mark.parametrize("name", [*FULL, "esvit_swin_tiny_patch4_window7_224"])
def test_models_without_a_classifier__are_read_like_those_with_one(name: str) -> None:
    staged = {"img_size": SIZE, "patch_size": 2, "embed_dim": 8, "depths": (2,), "num_heads": (2,), "window_size": 4}
    model = build(name, **FULL.get(name, {**staged, "num_classes": 3}))
    expected, rolled = read_attention(model, images())[-1], attention_rollout(model, images())
    model.reset_classifier(0)  # type: ignore[operator]
    torch.testing.assert_close(read_attention(model, images())[-1].weights, expected.weights)
    torch.testing.assert_close(attention_rollout(model, images()), rolled)


def test_half_and_compiled_models__are_read_like_plain_ones() -> None:
    name = "vit_tiny_patch16_224"
    model = build(name, **FULL[name])
    plain = read_attention(model, images())[-1].weights
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(read_attention(compiled, images())[-1].weights, plain)  # type: ignore[arg-type]
    half = build(name, **FULL[name]).half()
    found = read_attention(half, images())[-1].weights
    assert found.dtype == torch.float32
    rounded = build(name, **FULL[name]).half().float()
    torch.testing.assert_close(found, read_attention(rounded, images())[-1].weights)
    assert next(half.parameters()).dtype == torch.float16


def test_explainable__gives_the_model_back_as_it_was() -> None:
    model = build("vit_tiny_patch16_224", **FULL["vit_tiny_patch16_224"]).train()
    model.get_submodule("blocks.0").eval()
    model.get_submodule("head").requires_grad_(False)
    before = [(name, part.training) for name, part in model.named_modules()]
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    with prepare_for_hooks(model) as module:
        assert not any(p.requires_grad for p in module.parameters())
        assert not any(part.training for part in module.modules())
    assert [(name, part.training) for name, part in model.named_modules()] == before
    assert {name for name, p in model.named_parameters() if p.requires_grad} == learning
