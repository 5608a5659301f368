"""The attention of SAM, SAM 2, SHViT and EfficientFormer v2 equals a naive one, cell by cell."""

from typing import Any

import pytest
import torch
from timm.models.vision_transformer_sam import get_decomposed_rel_pos_bias
from torch import Tensor
from torch.nn import functional

from explain.naive import Cell, biases, build, cells_of, images, naive, read, same, split
from paucal.backbones.attention_maps import attention_layers
from paucal.explain.attention.reading import read_attention
from paucal.explain.attention.rollout import attention_rollout
from paucal.explain.attribution.gradients import gradient_rollout

SAM = {"depth": 2, "embed_dim": 32, "num_heads": 2, "window_size": 3, "global_attn_indexes": (1,), "neck_chans": 16}
SAM2 = {"embed_dim": 16, "stages": (1, 1, 1, 2), "window_spec": (8, 4, 4, 2), "global_att_blocks": (4,)}
SHVIT = {"depth": (1, 1, 1), "embed_dim": (16, 24, 32), "partial_dim": (8, 12, 16)}
EFFICIENT = {"depths": (1, 1, 1, 2), "embed_dims": (8, 16, 24, 32), "num_vit": 1}


def masked(queries: list[Cell], keys: list[Cell], own: Cell, seen: Cell, heads: int = 1) -> Tensor:
    """Return what hides the keys of other windows; windows have other sides in the queries' grid."""

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        inside = (one[0] // own[0], one[1] // own[1]) == (two[0] // seen[0], two[1] // seen[1])
        return 0.0 if inside else None

    return biases(heads, queries, keys, bias)


def is_full(found) -> bool:
    """Whether every token attends to every token."""
    return found.queries.shape[0] == 1 and found.tokens == found.key_tokens and found.queries.shape == found.keys.shape


@torch.no_grad()
def test_sam__sees_padded_windows_with_relative_positions() -> None:
    model = build("samvit_base_patch16", img_size=(64, 96), **SAM)
    found, layer, features = read(model, images(64, 96), "blocks.0.attn", "blocks.0")
    assert found.tokens.grid == (4, 6)
    block: Any = model.get_submodule("blocks.0")
    full = functional.pad(block.norm1(features), (0, 0, 0, 0, 0, 2))  # 6 rows of cells
    cells = cells_of((6, 6))
    inside = [place for place, (row, _) in enumerate(cells) if row < 4]
    query, key, _ = split(layer.qkv(full.flatten(1, 2)), 3, 2)
    added = masked([cells[place] for place in inside], cells, (3, 3), (3, 3), 2)[None].repeat(2, 1, 1, 1)
    for number, place in enumerate(inside):  # the places within a window, by the query's own channels
        for other, (row, column) in enumerate(cells):
            steps = cells[place][0] % 3 - row % 3 + 2, cells[place][1] % 3 - column % 3 + 2
            added[:, :, number, other] += query[:, :, place] @ (layer.rel_pos_h[steps[0]] + layer.rel_pos_w[steps[1]])
    same(found.dense(), naive(query[:, :, inside], key, layer.scale, added)[..., inside])


@torch.no_grad()
def test_sam__sees_everything_in_its_global_layers() -> None:
    model = build("samvit_base_patch16", img_size=(64, 96), **SAM)
    found, layer, features = read(model, images(64, 96), "blocks.1.attn")
    assert is_full(found)
    query, key, _ = split(layer.qkv(features.flatten(1, 2)), 3, 2)
    places = get_decomposed_rel_pos_bias(query.flatten(0, 1), layer.rel_pos_h, layer.rel_pos_w, (4, 6), (4, 6))
    same(found.dense(), naive(query, key, layer.scale, places.unflatten(0, (2, 2))))


@torch.no_grad()
@pytest.mark.parametrize(
    ("number", "grids", "windows"),
    [(0, ((16, 24), (16, 24)), (8, 8)), (1, ((8, 12), (16, 24)), (4, 8)), (2, ((4, 6), (8, 12)), (2, 4))],
)
def test_sam2__pools_queries_within_windows(number: int, grids: tuple[Cell, Cell], windows: Cell) -> None:
    model, name = build("sam2_hiera_tiny", **SAM2), f"blocks.{number}"
    found, layer, features = read(model, images(64, 96), f"{name}.attn", name)
    block: Any = model.get_submodule(name)
    assert (found.tokens.grid, found.key_tokens.grid) == grids
    query, key, _ = split(layer.qkv(block.norm1(features).flatten(1, 2)), 3, layer.num_heads)
    if number:
        fine = query.transpose(2, 3).unflatten(3, grids[1]).flatten(0, 1)
        query = functional.max_pool2d(fine, 2).flatten(2).transpose(1, 2).unflatten(0, (2, -1))
    queries, keys = cells_of(grids[0]), cells_of(grids[1])
    some = [0, len(queries) // 3, len(queries) - 1]
    added = masked([queries[place] for place in some], keys, (windows[0],) * 2, (windows[1],) * 2, layer.num_heads)
    same(found.dense()[:, :, some], naive(query[:, :, some], key, layer.scale, added))


@torch.no_grad()
def test_sam2__pads_windows_and_sees_everything_in_its_global_layers() -> None:
    model = build("sam2_hiera_tiny", **SAM2)
    padded, last = (read_attention(model, images(64, 96), [f"blocks.{number}.attn"])[0] for number in (3, 4))
    assert padded.keys.shape == (2, 16)  # 4x6 cells in windows of 4: two, the second with two columns of padding
    assert sorted(padded.keys[padded.keys >= 0].tolist()) == list(range(24))
    assert padded.queries.tolist() == [[0, 1, 3, 4], [2, -1, 5, -1]]
    assert is_full(last)
    assert last.tokens.grid == (2, 3)


@torch.no_grad()
def test_shvit__has_one_head_that_sees_all_cells() -> None:
    model = build("shvit_s1", **SHVIT)
    for layer in attention_layers(model).values():
        layer.get_parameter("pre_norm.weight").mul_(10)  # attention far from even
    names = [one.layer for one in read_attention(model, images(128, 192))]
    found, layer, features = read(model, images(128, 192), names[0])
    assert (found.heads, found.tokens.grid) == (1, tuple(features.shape[2:]))
    joint = layer.qkv(layer.pre_norm(features[:, : layer.pdim]))
    query, key = (joint[:, start : start + layer.qk_dim].flatten(2).mT[:, None] for start in (0, layer.qk_dim))
    same(found.dense(), naive(query, key, layer.scale))


@torch.no_grad()
def test_efficientformer_v2__sees_all_cells_and_pools_queries() -> None:
    model = build("efficientformerv2_s0", **EFFICIENT)
    layers = {one.layer: one for one in read_attention(model, images(224, 224))}
    pooling = next(name for name in layers if "downsample" in name)
    assert (layers[pooling].tokens.grid, layers[pooling].key_tokens.grid) == ((7, 7), (14, 14))

    def heads(maps: Tensor) -> Tensor:
        return maps.flatten(2).unflatten(1, (layer.num_heads, -1)).mT

    found, layer, features = read(model, images(224, 224), pooling)
    biased = layer.get_attention_biases(features.device)
    same(found.dense(), naive(heads(layer.q(features)), heads(layer.k(features)), layer.scale, biased))
    found, layer, features = read(model, images(224, 224), next(name for name in layers if "downsample" not in name))
    if layer.stride_conv is not None:
        features = layer.stride_conv(features)
    assert found.tokens.grid == (7, 7)
    products = heads(layer.q(features)) @ heads(layer.k(features)).mT * layer.scale
    mixed = layer.talking_head1(products + layer.get_attention_biases(features.device))
    same(found.dense(), mixed.softmax(-1))


@pytest.mark.parametrize(
    ("name", "options", "grid"),
    [
        ("samvit_base_patch16", {**SAM, "img_size": 64}, (4, 4)),
        ("sam2_hiera_tiny", SAM2, (16, 16)),
    ],
)
def test_rollouts__keep_their_share_and_take_gradients(name: str, options: dict[str, Any], grid: Cell) -> None:
    model = build(name, **options)
    found = attention_rollout(model, images(64, 64))
    assert found.shape == (2, *grid)
    assert float(found.sum((1, 2)).max()) < 1 + 1e-4
    assert float(found.sum((1, 2)).min()) > 0.2
    weighted = gradient_rollout(model, images(64, 64), torch.tensor(1))
    assert weighted.shape == (2, *grid)
    assert float(weighted.std()) > 0
