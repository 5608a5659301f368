"""EsViT's windowed CvT: windows, what fills them up, biases by offset."""

import math

import pytest
import timm
import torch
from torch import nn

from backbones.families.cvt_parts import convolved, images, stirred
from paucal.backbones.attention_maps import recorded_attention
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.cvt_esvit import (
    EsvitCvt,
    WindowAttention,
    choose_window,
    padding_bias,
)
from paucal.backbones.weights.start import StartWeights, start_from

SMALL = {"embed_dims": (8, 16, 24), "depths": (1, 1, 1), "num_heads": (1, 2, 3), "num_classes": 3}
PADDINGS = ("published", "masked", "shrunk")


def layer_of(padding: str, rel_pos_bias: bool, window: int = 4) -> WindowAttention:
    torch.manual_seed(0)
    layer = stirred(WindowAttention(12, 3, window, padding, rel_pos_bias)).eval()
    if rel_pos_bias:
        nn.init.normal_(layer.relative_position_bias_table)
    return layer


def window_by_window(layer: WindowAttention, tokens: torch.Tensor, grid: tuple[int, int], window: tuple[int, int]):
    """Compute the attention query by query: whom it sees, with which bias."""
    rows, columns = window
    cells = tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)
    height, width = -(-grid[0] // rows) * rows, -(-grid[1] // columns) * columns
    padded = nn.functional.pad(cells, (0, width - grid[1], 0, height - grid[0]))
    source, size = (padded, (height, width)) if layer.padding == "published" else (cells, grid)
    query, key, value = layer.qkv(convolved(layer.conv_proj, source, 1)).chunk(3, -1)
    side, out = layer.window_size[0], torch.zeros_like(tokens)
    for row in range(grid[0]):
        for column in range(grid[1]):
            top, left = row // rows * rows, column // columns * columns
            seen = [
                (r, c) for r in range(top, min(top + rows, size[0])) for c in range(left, min(left + columns, size[1]))
            ]
            places = [r * size[1] + c for r, c in seen]
            for head in range(3):
                own = slice(head * 4, head * 4 + 4)
                logits = key[:, places, own] @ query[:, row * size[1] + column, own, None] / 12**0.5
                if layer.relative_position_bias_table is not None:
                    offsets = [(row - r + side - 1) * (2 * side - 1) + column - c + side - 1 for r, c in seen]
                    logits = logits + layer.relative_position_bias_table[offsets, head, None]
                out[:, row * grid[1] + column, own] = (logits.softmax(1) * value[:, places, own]).sum(1)
    return layer.proj(out)


@pytest.mark.parametrize("rel_pos_bias", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("grid", [(8, 4), (6, 9), (3, 5), (2, 2)])
def test_attention__is_that_of_each_window(padding: str, rel_pos_bias: bool, grid: tuple[int, int]) -> None:
    layer, tokens = layer_of(padding, rel_pos_bias), torch.randn(2, math.prod(grid), 12)
    window = {
        "shrunk": {(8, 4): (4, 4), (6, 9): (3, 3), (3, 5): (3, 3), (2, 2): (2, 2)},
    }.get(padding, {(8, 4): (4, 4), (6, 9): (4, 4), (3, 5): (3, 3), (2, 2): (2, 2)})[grid]
    assert choose_window(grid, 4, layer.padding) == window
    with torch.no_grad():
        torch.testing.assert_close(layer(tokens, grid), window_by_window(layer, tokens, grid, window))


def test_padding__matters_where_a_window_is_not_full_and_only_there() -> None:
    outputs = {}
    for grid in ((8, 4), (6, 9)):
        tokens = torch.randn(1, math.prod(grid), 12, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            outputs[grid] = [layer_of(padding, True)(tokens, grid) for padding in PADDINGS]
    for other in outputs[8, 4][1:]:
        torch.testing.assert_close(other, outputs[8, 4][0])
    published, masked, shrunk = outputs[6, 9]
    assert (published - masked).abs().max() > 1e-2
    assert (shrunk - masked).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("grid", "published", "shrunk"),
    [
        ((56, 56), (7, 7), (7, 7)),
        ((24, 24), (7, 7), (6, 6)),
        ((12, 12), (7, 7), (6, 6)),
        ((3, 3), (3, 3), (3, 3)),
        ((3, 10), (3, 3), (3, 5)),
        ((25, 1), (1, 1), (7, 1)),
    ],
)
def test_window_of__is_as_published_or_as_small_as_can_be(grid, published, shrunk) -> None:
    assert choose_window(grid, 7, "published") == choose_window(grid, 7, "masked") == published
    assert choose_window(grid, 7, "shrunk") == shrunk


def test_hidden_cells__are_those_beyond_the_grid_and_serve_after_inference() -> None:
    with torch.inference_mode():
        hidden = padding_bias((3, 5), (2, 3), torch.zeros(1))
    assert not hidden.is_inference()
    assert hidden is padding_bias((3, 5), (2, 3), torch.ones(1))
    beyond = hidden[:, 0, 0] == -torch.inf
    assert beyond.tolist() == [
        [False] * 6,
        [False, False, True] * 2,
        [False] * 3 + [True] * 3,
        [False, False, True, True, True, True],
    ]
    assert (hidden[:, 0, 0][~beyond] == 0).all()


def test_offsets__count_rows_and_columns_from_key_to_query() -> None:
    offsets = layer_of("published", True, 3).relative_position_index
    assert offsets[0, 0] == 2 * 5 + 2
    assert offsets[5, 6] == (1 - 2 + 2) * 5 + (2 - 0 + 2)  # cells (1, 2) and (2, 0)
    assert len(offsets.unique()) == 25


@pytest.mark.parametrize("padding", PADDINGS)
def test_attention__is_equal_on_both_paths_and_in_its_gradients(padding) -> None:
    layer, tokens = layer_of(padding, False).train(), torch.randn(2, 54, 12)
    results = []
    for fused in (True, False):
        layer.fused_attn = fused
        out = layer(tokens, (6, 9))
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in layer.parameters())])
        layer.zero_grad()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_attention__hands_out_a_map_per_window_in_which_hidden_cells_have_no_weight() -> None:
    layer = layer_of("masked", True)
    with recorded_attention(nn.ModuleDict({"attn": layer})) as maps, torch.no_grad():
        layer(torch.randn(2, 54, 12), (6, 9))
    weights = maps["attn"]
    assert weights.shape == (2 * 6, 3, 16, 16)
    hidden = padding_bias((6, 9), (4, 4), torch.zeros(1)).repeat(2, 1, 1, 1) == -torch.inf
    assert (weights[hidden.expand_as(weights)] == 0).all()
    assert (weights[~hidden.expand_as(weights)] > 0).all()


@pytest.mark.parametrize("padding", PADDINGS)
def test_model__with_biases_runs_on_small_and_odd_grids_and_trains_all_of_them(padding: str) -> None:
    torch.manual_seed(0)
    model = EsvitCvt(**SMALL, padding=padding, rel_pos_bias=True)
    assert model.no_weight_decay() == {f"stages.{i}.blocks.0.attn.relative_position_bias_table" for i in range(3)}
    for size in ((96, 96), (40, 72), (20, 20)):
        out = model(images(*size))
        assert out.shape == (2, 3)
        assert torch.isfinite(out).all()
    model(images(112, 112)).square().sum().backward()
    assert all(p.grad.any() for name, p in model.named_parameters() if not name.endswith("bias"))
    table = model.stages[0].blocks[0].attn.relative_position_bias_table
    assert table.grad.any(1).all()  # on a grid of 28x28 cells every offset occurs


@pytest.mark.slow
def test_model__compiles_without_breaks_and_anew_for_each_size() -> None:
    torch.manual_seed(0)
    model, sizes = EsvitCvt(**SMALL, padding="masked", rel_pos_bias=True).eval(), []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> torch.fx.GraphModule:
        sizes.extend(tuple(one.shape[2:]) for one in inputs if isinstance(one, torch.Tensor) and one.shape[1:2] == (3,))
        assert not any(isinstance(one, torch.SymInt) for one in inputs)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for size in ((40, 72), (96, 96)):
        with torch.no_grad():
            torch.testing.assert_close(compiled(images(*size)), model(images(*size)))
        assert size in sizes


def test_model__classifies_the_mean_of_the_normed_map() -> None:
    torch.manual_seed(0)
    model, x = stirred(EsvitCvt(**SMALL)).eval(), images()
    with torch.no_grad():
        (last,) = model.forward_intermediates(x, indices=1, intermediates_only=True)
        normed = model.norm(last.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        torch.testing.assert_close(model.forward_features(x), normed)
        torch.testing.assert_close(model(x), model.head(normed.mean((2, 3))))


def test_start__resamples_the_biases_of_other_windows() -> None:
    torch.manual_seed(0)
    source, target = (EsvitCvt(**SMALL, rel_pos_bias=True, window_size=side) for side in (7, 4))
    report = start_from(target, StartWeights({"model": source.state_dict()}, "a file"), head="keep")
    assert (report.share, report.unused) == (1.0, ())
    assert set(report.adapted) == target.no_weight_decay()


def test_registered__are_the_published_configurations() -> None:
    for name, rate, widths in (
        ("esvit_cvt_tiny", 0.1, [64, 192, 384, 768]),
        ("esvit_cvt_small", 0.2, [64, 128, 256, 512]),
    ):
        with meta_device():
            model = timm.create_model(name)
        assert [info["num_chs"] for info in model.feature_info] == widths
        assert model.stages[-1].blocks[-1].drop_path.drop_prob == pytest.approx(rate)
        assert model.stages[0].blocks[0].attn.relative_position_bias_table is None
    assert sum(p.numel() for p in model.parameters()) == 23_133_160


@pytest.mark.parametrize(
    ("arguments", "message"), [({"padding": "none"}, "padding is 'none'"), ({"window_size": 0}, "window_size is 0")]
)
def test_constructor__refuses_what_makes_no_window(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EsvitCvt(**{**SMALL, **arguments})
