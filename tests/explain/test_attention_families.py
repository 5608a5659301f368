"""The attention that is read equals a naive one, cell by cell, for families with windows, pooled keys and chunks."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import paucal.backbones  # noqa: F401 (registers our models)
from explain.naive import Cell, biases, build, cells_of, images, naive, read, same, split
from paucal.explain.attention.reading import read_attention
from paucal.explain.attention.rollout import attention_rollout
from paucal.explain.attribution.gradients import gradient_rollout
from paucal.types import UserError

STAGES = {"embed_dims": (16, 24, 32, 48), "num_heads": (2, 2, 2, 3), "depths": (1, 1, 1, 1)}


@torch.no_grad()
@pytest.mark.parametrize("part", ["attn_block", "attn_grid"])
@pytest.mark.parametrize("name", ["maxvit_rmlp_pico_rw_256", "maxvit_tiny_tf_224"])
def test_maxvit__sees_blocks_and_then_grids(name: str, part: str) -> None:
    options = {"depths": (1,), "embed_dim": (64,), "stem_width": 8, "block_type": ("M",)}
    model, where = build(name, img_size=(64, 96), **options), f"stages.0.blocks.0.{part}"
    found, layer, features = read(model, images(64, 96), f"{where}.attn", where)
    block: Any = model.get_submodule(where)
    assert (found.tokens.grid, tuple(block.partition_size)) == ((16, 24), (2, 3))
    joint = layer.qkv(block.norm1(features).flatten(1, 2))
    if layer.head_first:
        query, key, _ = joint.unflatten(2, (2, 3, 32)).permute(3, 0, 2, 1, 4).unbind(0)
    else:
        query, key, _ = split(joint, 3, 2)
    table = layer.rel_pos.get_bias().view(2, 6, 6)

    def window(cell: Cell) -> Cell:
        return (cell[0] // 2, cell[1] // 3) if part == "attn_block" else (cell[0] % 8, cell[1] % 8)

    def slot(cell: Cell) -> int:
        row, column = (cell[0] % 2, cell[1] % 3) if part == "attn_block" else (cell[0] // 8, cell[1] // 8)
        return 3 * row + column

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        return float(table[head, slot(one), slot(two)]) if window(one) == window(two) else None

    cells, some = cells_of((16, 24)), [0, 101, 383]
    added = biases(2, [cells[place] for place in some], cells, bias)
    same(found.dense()[:, :, some], naive(query[:, :, some], key, layer.scale, added))


@torch.no_grad()
def test_coatnet__sees_all_cells_of_a_map_with_channels_first() -> None:
    model = build("coatnet_pico_rw_224", img_size=(64, 96), depths=(1,) * 4, embed_dim=(16, 64, 64, 64), stem_width=8)
    found, layer, features = read(model, images(64, 96), "stages.2.blocks.0.attn")
    assert found.tokens.grid == (4, 6)
    joint = layer.qkv(features).flatten(2).transpose(1, 2)
    query, key, _ = joint.unflatten(2, (2, 3, 32)).permute(3, 0, 2, 1, 4).unbind(0)
    same(found.dense(), naive(query, key, layer.scale, layer.rel_pos.get_bias()))


@torch.no_grad()
@pytest.mark.parametrize(("level", "blocks"), [(0, 4), (1, 2), (2, 1)])
def test_nest__sees_blocks_of_every_level(level: int, blocks: int) -> None:
    options = {"embed_dims": (16, 24, 32), "num_heads": (2, 2, 2), "depths": (1, 1, 1)}
    model = build("nest", img_size=64, **options)
    found, layer, features = read(model, images(64, 64), f"levels.{level}.transformer_encoder.0.attn")
    assert found.tokens.grid == (4 * blocks, 4 * blocks)
    query, key, _ = split(layer.qkv(features.flatten(1, 2)), 3, 2)

    def place(cell: Cell) -> int:
        """Return where a cell lies among the tokens: blocks of 4x4 cells row by row, and cells so within them."""
        return (cell[0] // 4 * blocks + cell[1] // 4) * 16 + cell[0] % 4 * 4 + cell[1] % 4

    cells = cells_of((4 * blocks, 4 * blocks))
    order = [place(cell) for cell in cells]
    added = biases(2, cells, cells, lambda head, one, two: 0.0 if place(one) // 16 == place(two) // 16 else None)
    same(found.dense(), naive(query[:, :, order], key[:, :, order], layer.scale, added))


@torch.no_grad()
def test_twins__sees_padded_windows_and_pooled_cells() -> None:
    options = {"embed_dims": (16, 24, 32, 32), "num_heads": (2,) * 4, "depths": (2, 2, 2, 2), "wss": (5, 5, 5, 5)}
    model, x = build("twins_svt_small", img_size=(32, 64), **options), images(32, 64)
    found, layer, tokens = read(model, x, "blocks.0.0.attn")
    assert found.tokens.grid == (8, 16)
    padded = functional.pad(tokens.unflatten(1, (8, 16)), (0, 0, 0, 4, 0, 2))
    query, key, _ = split(layer.qkv(padded.flatten(1, 2)), 3, 2)
    cells = cells_of((10, 20))

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        return 0.0 if (one[0] // 5, one[1] // 5) == (two[0] // 5, two[1] // 5) else None

    inside = [place for place, (row, column) in enumerate(cells) if row < 8 and column < 16]
    added = biases(2, [cells[place] for place in inside], cells, bias)
    same(found.dense(), naive(query[:, :, inside], key, layer.scale, added)[..., inside])
    found, layer, tokens = read(model, x, "blocks.0.1.attn")
    assert (found.tokens.grid, found.key_tokens.grid) == ((8, 16), (1, 2))
    pooled = layer.norm(layer.sr(tokens.transpose(1, 2).unflatten(2, (8, 16))).flatten(2).transpose(1, 2))
    key, _ = split(layer.kv(pooled), 2, 2)
    same(found.dense(), naive(split(layer.q(tokens), 1, 2)[0], key, layer.scale))


@torch.no_grad()
def test_pvt__sees_pooled_cells() -> None:
    model = build("pvt_v2_b0", depths=(1, 1, 1, 1))
    found, layer, tokens = read(model, images(64, 96), "stages.1.blocks.0.attn")
    assert (found.tokens.grid, found.key_tokens.grid) == ((8, 12), (2, 3))
    pooled = layer.norm(layer.sr(tokens.transpose(1, 2).unflatten(2, (8, 12))).flatten(2).transpose(1, 2))
    key, _ = split(layer.kv(pooled), 2, layer.num_heads)
    same(found.dense(), naive(split(layer.q(tokens), 1, layer.num_heads)[0], key, layer.scale))


@torch.no_grad()
@pytest.mark.parametrize("name", ["cvt_13", "drloc_cvt_13"])
def test_cvt__sees_cells_of_a_convolution_with_stride(name: str) -> None:
    model = build(name, embed_dims=(16, 24, 32), depths=(1, 1, 2), num_heads=(1, 2, 2))
    found, layer, tokens = read(model, images(64, 96), "stages.2.blocks.1.attn")
    first = 1 if name == "cvt_13" else 0
    assert (found.tokens.grid, found.key_tokens.grid) == ((4, 6), (2, 3))
    assert found.tokens.prefix == ("class",)[:first]
    cells = tokens[:, first:].transpose(1, 2).unflatten(2, (4, 6))

    def projected(convolution: nn.Module, linear: nn.Module, parts: int) -> Tensor:
        return split(
            linear(torch.cat((tokens[:, :first], convolution(cells).flatten(2).transpose(1, 2)), 1)), parts, 2
        )[0]

    query = projected(layer.conv_proj_q, layer.proj_q, 1)
    convolution, linear = (layer.conv_proj_k, layer.proj_k) if first else (layer.conv_proj_kv, layer.proj_kv)
    key = projected(convolution, linear, 1 if first else 2)
    same(found.dense(), naive(query, key, layer.scale))


@torch.no_grad()
@pytest.mark.parametrize("padding", ["published", "masked", "shrunk"])
def test_esvit_cvt__sees_windows_however_they_are_filled(padding: str) -> None:
    model = build("esvit_cvt_tiny", **{**STAGES, "window_size": 5, "padding": padding})
    found, layer, tokens = read(model, images(32, 48), "stages.0.blocks.0.attn")
    assert found.tokens.grid == (8, 12)
    window = (4, 4) if padding == "shrunk" else (5, 5)
    full = (8, 12) if padding == "shrunk" else (10, 15)
    fill = (0, full[1] - 12, 0, full[0] - 8)
    maps = tokens.transpose(1, 2).unflatten(2, (8, 12))
    if padding == "published":
        laid = layer.conv_proj(functional.pad(maps, fill))
    else:
        laid = functional.pad(layer.conv_proj(maps), fill)
    query, key, _ = split(layer.qkv(laid.flatten(2).transpose(1, 2)), 3, 2)
    cells = cells_of(full)

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        beyond = two[0] >= 8 or two[1] >= 12
        if (one[0] // window[0], one[1] // window[1]) != (two[0] // window[0], two[1] // window[1]):
            return None
        return None if beyond and padding != "published" else 0.0

    inside = [place for place, (row, column) in enumerate(cells) if row < 8 and column < 12]
    added = biases(2, [cells[place] for place in inside], cells, bias)
    same(found.dense(), naive(query[:, :, inside], key, layer.scale, added)[..., inside])


@torch.no_grad()
@pytest.mark.parametrize("mode", ["blocks", "exact", "own", "cyclic"])
@pytest.mark.parametrize("side", [3, 5])  # three and six chunks along the sides, and two and four
def test_vil__sees_near_cells_and_global_tokens(mode: str, side: int) -> None:
    size = (32, 64)
    model = build("vil_tiny", **{**STAGES, "window_size": side, "mode": mode, "img_size": size})
    found, layer, tokens = read(model, images(*size), "stages.0.blocks.0.attn")
    grid = (size[0] // 4, size[1] // 4)
    assert (found.tokens.grid, found.tokens.prefix) == (grid, ("class",))
    query, key, _ = split(layer.qkv(tokens), 3, 2)
    table = layer.local_relative_position_bias_table
    to_global = layer.g2l_relative_position_bias
    chunks = [-(-cells // side) for cells in grid]
    reach = 2 * side - 1

    def offset(axis: int, one: int, two: int) -> int | None:
        """Return how far two cells are apart along an axis, None where they do not see each other."""
        first, second, count = one // side, two // side, chunks[axis]
        if mode == "own":
            return one - two if first == second else None
        if mode == "exact":
            return one - two if abs(one - two) <= side else None
        if mode == "blocks":
            return one - two if abs(first - second) <= 1 else None
        period = side * count
        if count <= 2:  # all see each other, by the shorter way
            return (one - two + period // 2) % period - period // 2
        around = (first - second + 1) % count - 1
        return around * side + one % side - two % side if around in (-1, 0, 1) else None

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        down, across = offset(0, one[0], two[0]), offset(1, one[1], two[1])
        if down is None or across is None:
            return None
        return float(table[(down + reach) * (2 * reach + 1) + across + reach, head])

    cells = cells_of(grid)
    added = biases(2, cells, cells, bias)
    added = torch.cat((to_global[1][:, None, :].expand(-1, len(cells), -1), added), 2)
    whole = found.dense()
    same(whole[:, :, 1:], naive(query[:, :, 1:], key, layer.scale, added))
    assert float(whole[:, :, 0].abs().max()) == 0
    assert found.query_mask().tolist() == [False, *[True] * len(cells)]


@torch.no_grad()
def test_vil__global_tokens_see_all_tokens() -> None:
    model = build("vil_tiny", **{**STAGES, "window_size": 3, "img_size": (32, 64)})
    found, layer, tokens = read(model, images(32, 64), "stages.0.blocks.0.attn.to_all", "stages.0.blocks.0.attn")
    attention: Any = model.get_submodule("stages.0.blocks.0.attn")
    if attention.query_global is not None:
        query = split(attention.query_global(tokens[:, :1]), 1, 2)[0]
        key = split(attention.kv_global(tokens), 2, 2)[0]
    else:
        query, key, _ = split(attention.qkv(tokens), 3, 2)
    table = torch.cat(
        (attention.g2g_relative_position_bias, attention.g2l_relative_position_bias[0][:, :, None].expand(-1, -1, 128)),
        2,
    )
    same(found.row("class"), naive(query[:, :, :1], key, layer.scale, table)[:, :, 0])


@torch.no_grad()
@pytest.mark.parametrize("name", ["cait_xxs24_224", "xcit_nano_12_p16_224"])
def test_class_attention__is_naive_and_alone(name: str) -> None:
    small = {"depth": 2, "embed_dim": 64, "num_heads": 4}
    model = build(name, **(small | {"img_size": 64} if name.startswith("cait") else small))
    size = (64, 64)  # XCiT: 16 cells and 16 channels a head, which must not be taken for each other
    layers = read_attention(model, images(*size))
    heads = 4
    assert [one.queries.tolist() for one in layers] == [[[0]], [[0]]]
    found, layer, tokens = read(model, images(*size), layers[-1].layer)
    expected = naive(split(layer.q(tokens[:, :1]), 1, heads)[0], split(layer.k(tokens), 1, heads)[0], layer.scale)
    same(found.row("class"), expected[:, :, 0])
    start = torch.zeros(2, 17)
    start[:, 0] = 1.0
    for one in reversed(layers):  # cells ask nothing: what has come to them stays
        asked = start[:, :1] * one.row("class").mean(1)
        start = torch.cat((0.5 * start[:, :1], start[:, 1:]), 1) + 0.5 * asked
    torch.testing.assert_close(attention_rollout(model, images(*size)).flatten(1), start[:, 1:])


@torch.no_grad()
def test_swin_v2__sees_shifted_windows_by_cosine() -> None:
    options = {"patch_size": 2, "embed_dim": 16, "depths": (2,), "num_heads": (2,), "window_size": 4}
    model = build("swinv2_tiny_window8_256", img_size=(16, 24), **options)
    found, layer, windows = read(model, images(16, 24), "layers.0.blocks.1.attn")
    block: Any = model.get_submodule("layers.0.blocks.1")
    assert (tuple(block.shift_size), found.tokens.grid) == ((2, 2), (8, 12))
    joint = functional.linear(windows, layer.qkv.weight, torch.cat((layer.q_bias, layer.k_bias, layer.v_bias)))
    query, key, _ = split(joint, 3, 2)
    weights = (
        layer.logit_scale.clamp(max=math.log(100)).exp()
        * functional.normalize(query, dim=-1)
        @ functional.normalize(key, dim=-1).mT
    )
    table = 16 * layer.cpb_mlp(layer.relative_coords_table).view(-1, 2).sigmoid()
    cells = cells_of((8, 12))

    def place(cell: Cell) -> tuple[int, int]:
        row, column = (cell[0] - 2) % 8, (cell[1] - 2) % 12
        return row // 4 * 3 + column // 4, row % 4 * 4 + column % 4

    expected = torch.full((2, 2, 96, 96), -torch.inf)
    for one, asking in enumerate(cells):
        for two, asked in enumerate(cells):
            (first, slot), (second, other) = place(asking), place(asked)
            near = abs(asking[0] - asked[0]) < 4 and abs(asking[1] - asked[1]) < 4  # not over the edge
            if first == second and near:
                entry = (slot // 4 - other // 4 + 3) * 7 + slot % 4 - other % 4 + 3
                expected[:, :, one, two] = weights.unflatten(0, (2, 6))[:, first, :, slot, other] + table[entry]
    same(found.dense(), expected.softmax(-1))


@torch.no_grad()
def test_t2t__sees_windows_of_the_stem_and_tokens() -> None:
    model = build("t2t_vit_t_14", depth=2, embed_dim=32, num_heads=2, token_dim=24, img_size=(64, 96))
    for name, grid, first in (("stem", (16, 24), 0), ("blocks.1.attn", (4, 6), 1)):
        layers = [one.layer for one in read_attention(model, images(64, 96))]
        found, layer, tokens = read(model, images(64, 96), layers[0] if name == "stem" else name)
        assert (found.tokens.grid, len(found.tokens.prefix)) == (grid, first)
        heads = 1 if name == "stem" else 2
        query, key, _ = split(tokens if name == "stem" else layer.qkv(tokens), 3, heads)
        same(found.dense(), naive(query, key, layer.scale))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nest", {"img_size": 64, "embed_dims": (16, 24, 32), "num_heads": (2, 2, 2), "depths": (1, 1, 1)}),
        ("vil_tiny", {**STAGES, "window_size": 3, "img_size": 64}),
        (
            "twins_svt_small",
            {"img_size": 64, "embed_dims": (16, 24, 32, 32), "num_heads": (2,) * 4, "depths": (2,) * 4},
        ),
        ("maxvit_tiny_tf_224", {"img_size": (64, 64), "depths": (1,) * 4, "embed_dim": (32,) * 4, "stem_width": 8}),
        ("swinv2_tiny_window8_256", {"img_size": 64, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)}),
    ],
)
def test_rollouts__keep_their_share_and_take_gradients(name: str, options: dict[str, Any]) -> None:
    model = build(name, **options)
    found = attention_rollout(model, images(64, 64))
    assert found.shape == (2, 16, 16)
    total = found.sum((1, 2))
    assert float(total.max()) < 1 + 1e-4
    assert float(total.min()) > 0.3  # the rest lies in padding and in global tokens
    weighted = gradient_rollout(model, images(64, 64), torch.tensor(1))
    assert weighted.shape == (2, 16, 16)
    assert float(weighted.std()) > 0


def test_cvt__answers_alike_alone_and_in_a_batch() -> None:
    """In double an image's maps do not depend on its neighbours; in float32 weights this large magnify rounding."""
    model = build("esvit_cvt_tiny", **STAGES).double()
    x = images(64, 64).double()
    together, alone = read_attention(model, x), read_attention(model, x[:1])
    for one, two in zip(together, alone, strict=True):
        torch.testing.assert_close(one.weights[:1], two.weights, rtol=1e-9, atol=1e-12)


def test_attention_without_places__is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="efficientvit_b0 has no attention weights to read"):
        read_attention(build("efficientvit_b0"), images(64, 64))
    channels = {"img_size": 64, "depth": 1, "embed_dim": 24, "num_heads": 2, "cls_attn_layers": 0}
    with pytest.raises(UserError, match="do not attend between positions in the image"):
        read_attention(build("xcit_nano_12_p16_224", **channels), images(64, 64))
