"""Sparse attention against a loop over queries, in all modes, with padding, on few and on many chunks."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones.families.vil_attention import AttentionSettings, FullAttention, SparseAttention, sparse_pairs

MODES = ("blocks", "exact", "cyclic", "own")
GRIDS = [(9, 7), (6, 6), (3, 8), (1, 7), (4, 5), (2, 3)]
WINDOW = 3


def close(actual, expected):
    torch.testing.assert_close(actual.detach(), expected)


def make(mode="blocks", global_tokens=1, share=True, relative=True, window=WINDOW, seed=0):
    torch.manual_seed(seed)
    settings = AttentionSettings(8, 2, global_tokens, relative)
    layer = SparseAttention(settings, window, mode, share).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def tokens(layer, grid, batch=2):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, layer.global_tokens + grid[0] * grid[1], 8, generator=generator, dtype=torch.float64)


def axis_pairs(query, length, window, mode, shifts=(-1, 0, 1)):
    """Return {key: offset} of one axis, by the definition: chunks at the given distances, nearest copy on a torus."""
    count = math.ceil(length / window)
    if mode == "own":
        shifts = (0,)
    seen = {}
    for key in range(length):
        copies = (-1, 0, 1) if mode == "cyclic" else (0,)
        for copy in copies:
            place = key + copy * count * window
            offset, shift = query - place, place // window - query // window
            if shift not in shifts or (mode == "exact" and abs(offset) > window):
                continue
            old = seen.get(key)
            if old is None or (abs(offset), offset) < (abs(old), old):
                seen[key] = offset
    return seen


@torch.no_grad()
def loop(layer, x, grid, slot=None):
    """Attend query by query; `slot` is the (down, across) of the one neighbour that is seen beside the own chunk."""
    count, heads, window = layer.global_tokens, layer.num_heads, layer.window
    height, width = grid
    weight, shift = layer.qkv.weight, layer.qkv.bias
    q, k, v = (x @ weight.T + shift).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    table, to_global = layer.local_relative_position_bias_table, layer.g2l_relative_position_bias
    out = torch.zeros_like(q)
    for row in range(height):
        for column in range(width):
            query = q[:, :, count + row * width + column]
            near = list(visible(row, column, grid, window, layer.mode, slot))
            keys = [*range(count), *(count + key for key, _, _ in near)]
            logits = (k[:, :, keys] @ query.unsqueeze(-1)).squeeze(-1) * layer.scale
            if table is not None:
                reach = 2 * window - 1
                places = [(dr + reach) * (2 * reach + 1) + dc + reach for _, dr, dc in near]
                biases = table[places].T
                logits = logits + (biases if to_global is None else torch.cat((to_global[1], biases), 1))
            out[:, :, count + row * width + column] = (logits.softmax(-1).unsqueeze(-2) @ v[:, :, keys]).squeeze(-2)
    if count:
        if layer.query_global is not None:
            q = layer.query_global(x).unflatten(2, (heads, -1)).transpose(1, 2)
            k, v = layer.kv_global(x).unflatten(2, (2, heads, -1)).permute(2, 0, 3, 1, 4)
        logits = (q[:, :, :count] @ k.transpose(-2, -1)) * layer.scale
        if to_global is not None:
            logits[..., :count] += layer.g2g_relative_position_bias
            logits[..., count:] += to_global[0].unsqueeze(-1)
        out[:, :, :count] = logits.softmax(-1) @ v
    out = out.transpose(1, 2).flatten(2)
    last = layer.proj_global or layer.proj
    return torch.cat((last(out[:, :count]), layer.proj(out[:, count:])), 1)


def visible(row, column, grid, window, mode, slot):
    """Return (key, row offset, column offset) of the cells that one cell sees."""
    around = (-1, 0, 1)
    options = [(around, around)] if slot is None else [((0,), (0,)), ((slot[0],), (slot[1],))]
    counts = [math.ceil(length / window) for length in grid]
    for index, (down, across) in enumerate(options):
        # On a torus of one chunk the neighbour is the chunk itself, which is seen already.
        if index and mode == "cyclic" and any(s and n == 1 for s, n in zip(slot, counts, strict=True)):
            continue
        rows = axis_pairs(row, grid[0], window, mode, down)
        columns = axis_pairs(column, grid[1], window, mode, across)
        for r, dr in rows.items():
            for c, dc in columns.items():
                if slot is not None and mode == "cyclic":  # the nearer copy, as when all are seen
                    dr, dc = nearest(dr, counts[0], window), nearest(dc, counts[1], window)
                yield r * grid[1] + c, dr, dc


def nearest(offset, count, window):
    copies = [offset + copy * count * window for copy in (-1, 0, 1)] if count <= 2 else [offset]
    return min(copies, key=lambda one: (abs(one), one))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("grid", GRIDS)
def test_sparse__equals_a_loop_over_queries(mode, grid):
    layer = make(mode).eval()
    x = tokens(layer, grid)
    close(layer(x, grid), loop(layer, x, grid))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"global_tokens": 0}, {"global_tokens": 3, "share": False}, {"relative": False}])
def test_sparse__equals_the_loop_with_other_tokens_and_positions(mode, options):
    layer = make(mode, **options).eval()
    for grid in [(7, 8), (3, 2)]:
        x = tokens(layer, grid)
        close(layer(x, grid), loop(layer, x, grid))


def test_modes__differ():
    outs = []
    for mode in MODES:
        layer = make(mode).eval()
        outs.append(layer(tokens(layer, (9, 9)), (9, 9)))
    for index, one in enumerate(outs):
        for other in outs[index + 1 :]:
            assert not torch.allclose(one, other, atol=1e-3)


def test_blocks__on_two_chunks_is_full_attention_over_the_same_offsets():
    sparse, grid = make().eval(), (6, 5)
    full = FullAttention(AttentionSettings(8, 2, 1), (6, 6)).double().eval()  # a table of as many offsets
    state = {name: value for name, value in sparse.state_dict().items()}
    full.load_state_dict(state)
    x = tokens(sparse, grid)
    torch.testing.assert_close(sparse(x, grid), full(x, grid))


@pytest.mark.parametrize("mode", ["blocks", "exact", "cyclic"])
@pytest.mark.parametrize("grid", [(7, 8), (6, 4), (3, 7)])
def test_random_neighbour__sees_its_own_chunk_and_the_drawn_one(mode, grid):
    layer = make(mode).train()
    layer.random_neighbour = True
    x = tokens(layer, grid)
    around = [(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if (r, c) != (0, 0)]
    drawn = set()
    for seed in range(24):
        slot = around[int(torch.randint(8, (1,), generator=torch.Generator().manual_seed(seed)))]
        if slot in drawn:
            continue
        drawn.add(slot)
        torch.manual_seed(seed)
        close(layer(x, grid), loop(layer, x, grid, slot))
    assert len(drawn) == 8


def test_random_neighbour__is_drawn_once_per_call_and_only_in_training():
    layer, grid = make().train(), (9, 9)
    layer.random_neighbour = True
    x = tokens(layer, grid)
    torch.manual_seed(5)
    layer(x, grid)
    after = torch.random.get_rng_state()
    torch.manual_seed(5)
    torch.randint(8, (1,))
    assert torch.equal(after, torch.random.get_rng_state())
    outs = [layer(x, grid) for _ in range(8)]
    assert any(not torch.equal(outs[0], other) for other in outs[1:])
    layer.eval()
    close(layer(x, grid), loop(layer, x, grid))
    assert torch.equal(layer(x, grid), layer(x, grid))


@pytest.mark.parametrize("grid", [(7, 8), (4, 4)])
@pytest.mark.parametrize("mode", MODES)
def test_paths__agree_forward_and_backward(mode, grid):
    layer = make(mode, global_tokens=2).eval()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("bias_table" not in name and "relative" not in name)  # else no kernel on a CPU
    x = tokens(layer, grid).requires_grad_()
    found = []
    for fused in (True, False):
        layer.fused_attn = layer.to_all.fused_attn = fused
        out = layer(x, grid)
        found.append((out, *torch.autograd.grad(out.square().sum(), (x, layer.qkv.weight, layer.proj.weight))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_explicit_path__shows_one_row_per_chunk():
    layer, grid = make(global_tokens=2).eval(), (7, 9)
    layer.fused_attn = False
    seen = []
    layer.attn_drop.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    layer(tokens(layer, grid), grid)
    assert seen[0].shape == (2 * 9, 2, 9, 2 + 9 * 9)  # images times chunks, heads, queries, keys
    corner = seen[0][0, :, :, 2:].unflatten(2, (9, 9))
    assert (corner[:, :, [0, 1, 2, 3, 6]] == 0).all()  # chunks above and to the left of the first
    assert (corner[:, :, [4, 5, 7, 8]] > 0).all()


def test_pairs__are_made_once_and_gather_nothing_where_all_see_all():
    x = torch.zeros(1)
    assert sparse_pairs((9, 9), 3, "blocks", False, x) is sparse_pairs((9, 9), 3, "blocks", False, x)
    assert sparse_pairs((6, 5), 3, "blocks", False, x).keys is None
    layer, grid = make(), (6, 6)
    x = tokens(layer, grid, 1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(x, grid)
    projections, attended = 37 * 8 * 32, 2 * (36 * 37 + 37) * 8
    assert counter.get_total_flops() == 2 * (projections + attended)


def test_pairs__made_in_inference_mode_serve_training():
    layer, grid = make(window=2), (11, 13)  # a size of this test alone
    x = tokens(layer, grid)
    with torch.inference_mode():
        layer(x, grid)
    layer(x, grid).sum().backward()
    assert layer.local_relative_position_bias_table.grad.any()


def test_hidden_keys__get_no_gradient():
    layer, grid = make("own").eval(), (6, 6)
    x = tokens(layer, grid, 1).requires_grad_()
    layer(x, grid)[0, 1].sum().backward()  # the first cell
    reached = x.grad[0].abs().sum(1) > 0
    cells = [1 + row * 6 + column for row in range(3) for column in range(3)]
    assert reached.nonzero().flatten().tolist() == [0, *cells]


def test_compile__draws_neighbours_in_one_graph_and_keeps_no_tensor_of_it():
    torch.compiler.reset()
    sparse_pairs.cache.cache_clear()
    layer, grid = make().train(), (9, 7)
    layer.random_neighbour = True
    compiled, x = torch.compile(layer, backend="eager", fullgraph=True), tokens(layer, grid)
    outs = []
    for one in (compiled, layer):
        torch.manual_seed(7)
        outs.append(one(x, grid).detach())
        assert (sparse_pairs.cache.cache_info().currsize > 0) == (one is layer)
    torch.testing.assert_close(outs[0], outs[1])
