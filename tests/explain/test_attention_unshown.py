"""The attention of families that show their weights to no submodule equals a naive one, cell by cell."""

from typing import Any

import pytest
import torch
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from torch import Tensor, nn
from torch.nn import functional

from explain.naive import Cell, biases, build, cells_of, images, naive, read, same, split
from paucal.explain.attention.reading import read_attention
from paucal.explain.attention.rollout import TokenContributions, attention_rollout, follow_back
from paucal.explain.attribution.gradients import gradient_rollout

TINY = {"embed_dims": (16, 24, 32, 32), "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2)}
DAVIT = {"embed_dims": (16, 24, 32, 32), "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2)}
GCVIT = {"embed_dim": 16, "depths": (2, 1, 1, 1), "num_heads": (2, 2, 2, 2)}
LEVIT = {"embed_dim": (32, 48, 64), "depth": (1, 1, 1), "num_heads": (2, 2, 2), "key_dim": 16}
HIERA = {"embed_dim": 16, "stages": (1, 1, 1, 1), "num_heads": 1}


def within(side: Cell, table: Tensor | None = None) -> Any:
    """Return the bias of two cells of a window of that size, None for cells of two windows."""

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        if (one[0] // side[0], one[1] // side[1]) != (two[0] // side[0], two[1] // side[1]):
            return None
        slots = [cell[0] % side[0] * side[1] + cell[1] % side[1] for cell in (one, two)]
        return 0.0 if table is None else float(table[head, slots[0], slots[1]])

    return bias


def padded(maps: Tensor, side: int) -> tuple[Tensor, list[Cell], list[int]]:
    """Return maps (B, H, W, C) filled with zeros up to whole windows, all cells, and which of them were there."""
    height, width = maps.shape[1:3]
    full = functional.pad(maps, (0, 0, 0, -width % side, 0, -height % side))
    cells = cells_of((full.shape[1], full.shape[2]))
    return full, cells, [place for place, (row, column) in enumerate(cells) if row < height and column < width]


@torch.no_grad()
def test_tiny_vit__sees_padded_windows() -> None:
    model, block = build("tiny_vit_5m_224", window_sizes=(7, 5, 7, 7), **TINY), "stages.1.blocks.0"
    found, layer, features = read(model, images(64, 96), f"{block}.attn", block)
    assert found.tokens.grid == (8, 12)
    full, cells, inside = padded(features, 5)
    joint = layer.qkv(layer.norm(full.flatten(1, 2))).unflatten(2, (2, -1)).transpose(1, 2)
    query, key = joint[..., : layer.key_dim], joint[..., layer.key_dim : 2 * layer.key_dim]
    table = layer.attention_biases[:, layer.attention_bias_idxs]
    added = biases(2, [cells[place] for place in inside], cells, within((5, 5), table))
    same(found.dense(), naive(query[:, :, inside], key, layer.scale, added)[..., inside])


@torch.no_grad()
def test_davit__sees_padded_windows() -> None:
    model, where = build("davit_tiny", window_size=5, **DAVIT), "stages.1.blocks.0.0"
    found, layer, features = read(model, images(64, 96), f"{where}.attn", where)
    block: Any = model.get_submodule(where)
    assert found.tokens.grid == (8, 12)
    normed = block.norm1(block.cpe1(features).flatten(2).transpose(1, 2)).unflatten(1, (8, 12))
    full, cells, inside = padded(normed, 5)
    query, key, _ = split(layer.qkv(full.flatten(1, 2)), 3, 2)
    added = biases(2, [cells[place] for place in inside], cells, within((5, 5)))
    same(found.dense(), naive(query[:, :, inside], key, layer.scale, added)[..., inside])


@torch.no_grad()
@pytest.mark.parametrize("number", [0, 1])  # queries of the cells, and one global query for each slot of a window
def test_gcvit__sees_windows(number: int) -> None:
    model, where = build("gcvit", img_size=(64, 96), **GCVIT), f"stages.0.blocks.{number}"
    given: list[Tensor] = []
    handle = model.get_submodule(f"{where}.attn").register_forward_pre_hook(lambda module, args: given.append(args[1]))
    found, layer, features = read(model, images(64, 96), f"{where}.attn", where)
    handle.remove()
    block: Any = model.get_submodule(where)
    assert (found.tokens.grid, tuple(block.window_size)) == ((16, 24), (2, 3))
    cells = cells_of((16, 24))
    joint = layer.qkv(block.norm1(features).flatten(1, 2))
    if number == 0:
        query, key, _ = split(joint, 3, 2)
    else:
        key, _ = split(joint, 2, 2)
        shared = split(given[0].flatten(1, -2), 1, 2)[0]
        query = shared[:, :, [row % 2 * 3 + column % 3 for row, column in cells]]
    table = layer.rel_pos.get_bias().view(2, 6, 6)
    some = [0, 101, 383]
    added = biases(2, [cells[place] for place in some], cells, within((2, 3), table))
    same(found.dense()[:, :, some], naive(query[:, :, some], key, layer.scale, added))


@torch.no_grad()
@pytest.mark.parametrize("name", ["levit_128s", "levit_conv_128s"])
def test_levit__sees_all_cells_and_pools_queries(name: str) -> None:
    model = build(name, img_size=128, **LEVIT)
    convolution = "conv" in name

    def heads(joint: Tensor) -> Tensor:
        rows = joint.flatten(2).transpose(1, 2) if convolution else joint
        return rows.unflatten(2, (2, -1)).transpose(1, 2)

    found, layer, tokens = read(model, images(128, 128), "stages.0.blocks.0.attn")
    assert found.tokens.grid == (8, 8)
    query, key, _ = heads(layer.qkv(tokens)).split([16, 16, layer.val_dim], -1)
    same(found.dense(), naive(query, key, layer.scale, layer.get_attention_biases(tokens.device)))
    found, layer, tokens = read(model, images(128, 128), "stages.1.downsample.attn_downsample")
    assert (found.tokens.grid, found.key_tokens.grid) == ((4, 4), (8, 8))
    key, _ = heads(layer.kv(tokens)).split([16, layer.val_dim], -1)
    query = heads(layer.q(tokens))
    same(found.dense(), naive(query, key, layer.scale, layer.get_attention_biases(tokens.device)))


def mvit(**options: Any) -> nn.Module:
    """Return a small MViT v2 without relative positions."""
    torch.manual_seed(0)
    sizes = {"depths": (1, 2, 1, 1), "embed_dim": (16, 32, 32, 32), "num_heads": (1, 2, 2, 2), "rel_pos_type": "none"}
    model = MultiScaleVit(MultiScaleVitCfg(**(sizes | options)), img_size=(64, 96), num_classes=3).eval()
    for key, parameter in model.named_parameters():
        if "norm" not in key:
            nn.init.normal_(parameter, std=0.3 if parameter.ndim < 4 else 0.1)
    return model


@torch.no_grad()
@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize(
    ("name", "grids"), [("stages.0.blocks.0", ((16, 24), (4, 6))), ("stages.1.blocks.0", ((8, 12), (8, 12)))]
)
def test_mvit__pools_queries_and_keys(name: str, grids: tuple[Cell, Cell], class_token: bool) -> None:
    model = mvit(use_cls_token=class_token)
    found, layer, tokens = read(model, images(64, 96), f"{name}.attn")
    first = int(class_token)
    assert (found.tokens.grid, found.key_tokens.grid) == grids
    assert found.tokens.prefix == ("class",)[:first]
    size = (16, 24)
    query, key, _ = split(layer.qkv(tokens), 3, layer.num_heads)

    def pooled(given: Tensor, pool: nn.Module | None, norm: nn.Module | None) -> Tensor:
        if pool is not None:
            maps = given[:, :, first:].transpose(2, 3).unflatten(3, size)
            cells = torch.stack([pool(maps[:, head]).flatten(2).transpose(1, 2) for head in range(maps.shape[1])], 1)
            given = torch.cat((given[:, :, :first], cells), 2)
        return given if norm is None else norm(given)

    query, key = pooled(query, layer.pool_q, layer.norm_q), pooled(key, layer.pool_k, layer.norm_k)
    same(found.dense(), naive(query, key, layer.scale))


@torch.no_grad()
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_hiera__sees_mask_units_and_then_all_cells(number: int) -> None:
    """Units of 8x8 cells; the first block of each later stage pools its queries, the last one sees everything."""
    model, x = build("hiera_tiny_224", img_size=(64, 96), **HIERA), images(64, 96)
    whole: Any = model
    name = f"blocks.{number}"
    found, layer, tokens = read(model, x, f"{name}.attn", name)
    if number == 0:
        maps = whole._pos_embed(whole.patch_embed(x)).unflatten(1, (16, 24))
    else:
        maps = whole.reroll(tokens, number - 1)
    seen = (16, 24) if number < 2 else (8, 12) if number == 2 else (4, 6)
    asked = {0: (16, 24), 1: (8, 12), 2: (4, 6), 3: (2, 3)}[number]
    assert (found.tokens.grid, found.key_tokens.grid) == (asked, seen)
    query, key, _ = split(layer.qkv(model.get_submodule(f"{name}.norm1")(maps.flatten(1, 2))), 3, layer.heads)
    step = seen[0] // asked[0]
    if step > 1:
        fine = query.transpose(2, 3).unflatten(3, seen).flatten(0, 1)
        query = functional.max_pool2d(fine, step).flatten(2).transpose(1, 2).unflatten(0, (len(x), -1))
    unit = {0: 8, 1: 8, 2: 4, 3: 100}[number]  # cells of the keys' grid along the side of a unit

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        own = (one[0] * step // unit, one[1] * step // unit)
        return 0.0 if own == (two[0] // unit, two[1] // unit) else None

    added = biases(layer.heads, cells_of(asked), cells_of(seen), bias)
    same(found.dense(), naive(query, key, layer.scale, added))


@torch.no_grad()
def test_swin_v2_cr__sees_shifted_windows() -> None:
    options = {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4}
    model, where = build("swinv2_cr_tiny_224", img_size=(32, 48), **options), "stages.0.blocks.1"
    found, layer, features = read(model, images(32, 48), f"{where}.attn", where)
    block: Any = model.get_submodule(where)
    assert (found.tokens.grid, tuple(block.shift_size)) == ((8, 12), (2, 2))
    query, key, _ = split(layer.qkv(features.flatten(1, 2)), 3, 2)
    products = functional.normalize(query, dim=-1) @ functional.normalize(key, dim=-1).mT
    scaled = products * layer.logit_scale.clamp(max=4.6051702).exp().view(1, 2, 1, 1)
    table = layer._relative_positional_encodings()[0]

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        moved = [((cell[0] - 2) % 8, (cell[1] - 2) % 12) for cell in (one, two)]
        beyond = [(cell[0] < 2, cell[1] < 2) for cell in (one, two)]  # rolled to the other side, which is masked
        return within((4, 4), table)(head, moved[0], moved[1]) if beyond[0] == beyond[1] else None

    cells = cells_of((8, 12))
    same(found.dense(), (scaled + biases(2, cells, cells, bias)).softmax(-1))


@torch.no_grad()
def test_mobile_vit__sees_the_cells_at_the_same_place_of_all_patches() -> None:
    model = build("mobilevit_xxs")
    found, layer, rows = read(model, images(128, 192), "stages.2.1.transformer.0.attn")
    assert found.tokens.grid == (16, 24)
    cells = cells_of((16, 24))
    unfolded = rows.unflatten(0, (2, 4))  # (images, cells of a patch, patches, channels)
    where = [(row % 2 * 2 + column % 2, row // 2 * 12 + column // 2) for row, column in cells]
    tokens = torch.stack([unfolded[:, part, patch] for part, patch in where], 1)
    query, key, _ = split(layer.qkv(tokens), 3, layer.num_heads)

    def bias(head: int, one: Cell, two: Cell) -> float | None:
        return 0.0 if (one[0] % 2, one[1] % 2) == (two[0] % 2, two[1] % 2) else None

    some = [0, 101, 383]
    added = biases(layer.num_heads, [cells[place] for place in some], cells, bias)
    same(found.dense()[:, :, some], naive(query[:, :, some], key, layer.scale, added))


@torch.no_grad()
def test_convit__mixes_contents_and_places() -> None:
    model = build("convit_tiny", depth=2, embed_dim=32, num_heads=2, local_up_to_layer=1, img_size=64)
    found, layer, tokens = read(model, images(64, 64), "blocks.0.attn")
    assert (found.tokens.grid, found.tokens.prefix) == ((4, 4), ())  # the class token comes after these layers
    query, key = split(layer.qk(tokens), 2, 2)
    place = layer.pos_proj(layer.rel_indices).permute(0, 3, 1, 2).softmax(-1)
    gate = layer.gating_param.sigmoid().view(1, 2, 1, 1)
    same(found.dense(), (1 - gate) * naive(query, key, layer.scale) + gate * place)
    found, layer, tokens = read(model, images(64, 64), "blocks.1.attn")
    assert found.tokens.prefix == ("class",)
    query, key, _ = split(layer.qkv(tokens), 3, 2)
    same(found.dense(), naive(query, key, layer.scale))


@torch.no_grad()
def test_tnt__sees_outer_tokens() -> None:
    model = build("tnt_s_patch16_224", depth=1, embed_dim=32, inner_dim=8, num_heads_outer=2, img_size=64)
    layers = [one.layer for one in read_attention(model, images(64, 64))]
    assert layers == ["blocks.0.attn_out"]  # the inner ones are within a cell
    found, layer, tokens = read(model, images(64, 64), layers[0])
    assert (found.tokens.grid, found.tokens.prefix) == ((4, 4), ("class",))
    query, key = split(layer.qk(tokens), 2, 2)
    same(found.dense(), naive(query, key, layer.scale))


@torch.no_grad()
def test_efficientformer__sees_all_cells_at_the_end() -> None:
    model = build("efficientformer_l1", depths=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32), num_vit=1)
    layers = [one.layer for one in read_attention(model, images(224, 224))]
    found, layer, tokens = read(model, images(224, 224), layers[-1])
    assert (len(layers), found.tokens.grid) == (1, (7, 7))
    joint = layer.qkv(tokens).unflatten(2, (layer.num_heads, -1)).transpose(1, 2)
    query, key, _ = joint.split([layer.key_dim, layer.key_dim, layer.val_dim], -1)
    same(found.dense(), naive(query, key, layer.scale, layer.get_attention_biases(tokens.device)))


@pytest.mark.parametrize(
    ("name", "options", "grid"),
    [
        ("gcvit", {**GCVIT, "img_size": 64}, (16, 16)),
        ("levit_128s", {**LEVIT, "img_size": 64}, (4, 4)),
        ("hiera_tiny_224", {**HIERA, "img_size": (64, 64)}, (16, 16)),
        ("davit_tiny", {**DAVIT, "window_size": 4}, (16, 16)),
        ("tiny_vit_5m_224", {**TINY, "window_sizes": (4, 4, 4, 4)}, (8, 8)),
    ],
)
def test_rollouts__keep_their_share_and_take_gradients(name: str, options: dict[str, Any], grid: Cell) -> None:
    model = build(name, **options)
    found = attention_rollout(model, images(64, 64))
    assert found.shape == (2, *grid)
    assert float(found.sum((1, 2)).max()) < 1 + 1e-4
    assert float(found.sum((1, 2)).min()) > 0.2  # the rest lies in padding
    weighted = gradient_rollout(model, images(64, 64), torch.tensor(1))
    assert weighted.shape == (2, *grid)
    assert float(weighted.std()) > 0


def test_rollout__follows_pooled_queries_to_the_cells_they_were_pooled_from() -> None:
    """Where nothing stays by the shortcut of one last layer, the map is what its queries see, on the finer grid."""
    model = build("levit_128s", img_size=64, **LEVIT)
    layers = read_attention(model, images(64, 64))
    pooling = next(one for one in layers if one.tokens.grid != one.key_tokens.grid)
    share = torch.rand(2, len(pooling.tokens))
    flow = follow_back(TokenContributions(share, pooling.tokens), [pooling], residual_factor=0.0, attention_factor=1.0)
    assert flow.tokens == pooling.key_tokens
    torch.testing.assert_close(flow.values, torch.einsum("bq,bqk->bk", share, pooling.dense().mean(1)))


def test_reading__leaves_the_models_answers_and_fused_paths_alone() -> None:
    model = build("hiera_tiny_224", img_size=(64, 64), **HIERA)
    before = [module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")]
    with torch.no_grad():
        plain = model(images(64, 64))
        read_attention(model, images(64, 64))
        torch.testing.assert_close(model(images(64, 64)), plain, rtol=0, atol=0)
    assert [module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")] == before
