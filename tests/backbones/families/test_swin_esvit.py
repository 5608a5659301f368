"""EsViT's Swin: sizes, cost, the three ways of padding, and what it shares with timm's."""

import itertools

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.swin_transformer import shifted_window_attention

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.attention_maps import recorded_attention
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.swin_esvit import PaddedSwinBlock, attend_windows

# Parameters without the head, GMACs at 224 pixels, and the window of each stage.
VARIANTS = [
    ("esvit_swin_tiny_patch4_window7_224", 27_519_354, 4.49, (7, 7, 7, 7)),
    ("esvit_swin_tiny_patch4_window14_224", 27_569_754, 4.89, (14, 14, 14, 7)),
    ("esvit_swin_small_patch4_window7_224", 48_837_258, 8.74, (7, 7, 7, 7)),
    ("esvit_swin_small_patch4_window14_224", 48_968_298, 9.40, (14, 14, 14, 7)),
    ("esvit_swin_base_patch4_window7_224", 86_743_224, 15.43, (7, 7, 7, 7)),
    ("esvit_swin_base_patch4_window14_224", 86_917_944, 16.32, (14, 14, 14, 7)),
]
TINY = "esvit_swin_tiny_patch4_window7_224"
SMALL = {"embed_dim": 16, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 2, 4), "num_classes": 5, "drop_path_rate": 0.0}


def build(**arguments: object) -> nn.Module:
    """Build a reduced model whose biases and tables are visible in the output."""
    torch.manual_seed(0)
    model = timm.create_model(TINY, **{**SMALL, **arguments})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)
    return model.eval()


def images(height: int, width: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def block_of(model: nn.Module, stage: int, shifted: bool) -> PaddedSwinBlock:
    return model.get_submodule(f"layers.{stage}.blocks.{int(shifted)}")  # type: ignore[return-value]


def gmacs(name: str, side: int, **arguments: object) -> float:
    with meta_device():
        model, counter = timm.create_model(name, num_classes=0, **arguments).eval(), FlopCounterMode(display=False)
        with counter:
            model(torch.zeros(1, 3, side, side))
    return counter.get_total_flops() / 2e9


@pytest.mark.parametrize(("name", "parameters", "cost", "windows"), VARIANTS)
def test_variants__have_the_published_sizes_and_windows(
    name: str, parameters: int, cost: float, windows: tuple[int, ...]
) -> None:
    with meta_device():
        model = timm.create_model(name, num_classes=0)
    assert sum(p.numel() for p in model.parameters()) == parameters
    for stage, (window, grid) in enumerate(zip(windows, (56, 28, 14, 7), strict=True)):
        for shifted in (False, True):
            block = block_of(model, stage, shifted)
            shift = window // 2 if shifted and grid > window else 0
            assert (block.window_size, block.shift_size) == ((window, window), (shift, shift))
    assert all(norm.eps == 1e-6 for norm in model.modules() if isinstance(norm, nn.LayerNorm))


COSTS = [pytest.param(name, cost, marks=[] if "tiny" in name else pytest.mark.slow) for name, _, cost, _ in VARIANTS]


@pytest.mark.parametrize(("name", "cost"), COSTS)
def test_variants__cost_what_is_published(name: str, cost: float) -> None:
    assert gmacs(name, 224) == pytest.approx(cost, rel=5e-3)


@pytest.mark.parametrize(("padding", "window"), [("published", 7), ("published", 14), ("shrunk", 14)])
def test_cost__leaves_out_padding_in_all_projections(padding: str, window: int) -> None:
    """8 N c^2 for projections and 4 N' w^2 c for attention per block in FLOP: N' cells with padding, N without."""
    total = 2 * 576 * 48 * 96
    for grid, width, depth in zip((24, 12, 6, 3), (96, 192, 384, 768), (2, 2, 6, 2), strict=True):
        side = min(window, {3: 7}.get(grid, window)) if padding == "published" else min(window, grid)
        padded = -(-grid // side) * side
        total += depth * (24 * grid**2 * width**2 + 4 * padded**2 * side**2 * width)
        total += 0 if grid == 3 else 16 * (grid // 2) ** 2 * width**2
    name = f"esvit_swin_tiny_patch4_window{window}_224"
    assert gmacs(name, 96, padding=padding) == pytest.approx(total / 2e9, rel=1e-6)
    if padding == "published":
        assert total / 1e9 < {7: 0.9 * 2.21, 14: 0.6 * 3.71}[window]  # what the original program computes


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("size", [(14, 21), (12, 12), (8, 17), (24, 10)])
def test_published__equals_torchvision_on_maps_that_need_padding(size: tuple[int, int], shifted: bool) -> None:
    block = block_of(build(), 1, shifted)
    x, layer = torch.randn(2, *size, 32), block.attn
    expected = shifted_window_attention(
        x,
        layer.qkv.weight,
        layer.proj.weight,
        layer._get_rel_pos_bias(),
        list(block.window_size),
        layer.num_heads,
        list(block.shift_size),
        qkv_bias=layer.qkv.bias,
        proj_bias=layer.proj.bias,
        training=False,
    )
    assert any(block.shift_size) == shifted
    torch.testing.assert_close(block._attn(x), expected, rtol=1e-5, atol=1e-5)


def test_published__still_shifts_a_map_that_one_window_spans() -> None:
    """Unlike torchvision: a 6x6 map padded to 7x7 falls into four parts, of 4 and 3 rows and columns."""
    block, x = block_of(build(), 1, shifted=True), torch.randn(1, 6, 6, 32)
    changed = x.clone()
    changed[:, 5, 5] += 1
    moved = (block._attn(changed) - block._attn(x)).abs().sum(-1)[0] > 1e-6
    assert moved[3:, 3:].all()
    assert not moved[:3].any()
    assert not moved[:, :3].any()


def attention_over(block: PaddedSwinBlock, x: Tensor, cells: list[tuple[int, int]]) -> Tensor:
    """Attention among some cells of a map, with their positions in the window as they lie in the map."""
    layer, (_, wide) = block.attn, block.window_size
    q, k, v = (
        layer.qkv(torch.stack([x[0, i, j] for i, j in cells])).reshape(len(cells), 3, layer.num_heads, -1).unbind(1)
    )
    out = torch.zeros(len(cells), layer.num_heads, q.shape[-1])
    for head in range(layer.num_heads):
        for a, (i, j) in enumerate(cells):
            logits = torch.stack(
                [
                    layer.scale * q[a, head] @ k[b, head]
                    + layer.relative_position_bias_table[(i - y + wide - 1) * (2 * wide - 1) + j - z + wide - 1, head]
                    for b, (y, z) in enumerate(cells)
                ]
            )
            out[a, head] = logits.softmax(0) @ v[:, head]
    return layer.proj(out.flatten(1))


@pytest.mark.parametrize("padding", ["masked", "shrunk"])
def test_padding__is_out_of_sight(padding: str) -> None:
    """Cells of a map that is smaller than a window attend to one another alone, at their own offsets."""
    block = block_of(build(padding=padding), 1, shifted=False)
    x, cells = torch.randn(1, 3, 5, 32), list(itertools.product(range(3), range(5)))
    with torch.no_grad():
        torch.testing.assert_close(
            block._attn(x)[0].flatten(0, 1), attention_over(block, x, cells), rtol=1e-5, atol=1e-5
        )
        published = block_of(build(), 1, shifted=False)._attn(x)
    assert (published - block._attn(x)).abs().max() > 0.05


@pytest.mark.parametrize("padding", ["masked", "shrunk"])
def test_padding__is_out_of_sight_beside_whole_windows_too(padding: str) -> None:
    block = block_of(build(padding=padding), 1, shifted=False)
    x, cells = torch.randn(1, 7, 10, 32), list(itertools.product(range(7), range(7, 10)))
    with torch.no_grad():
        torch.testing.assert_close(
            block._attn(x)[0, :, 7:].flatten(0, 1), attention_over(block, x, cells), rtol=1e-5, atol=1e-5
        )


def test_shrunk__does_not_shift_a_map_that_one_window_spans() -> None:
    model, x = build(padding="shrunk"), torch.randn(1, 6, 6, 32)
    plain, shifted = block_of(model, 1, shifted=False), block_of(model, 1, shifted=True)
    shifted.load_state_dict(plain.state_dict())
    torch.testing.assert_close(shifted._attn(x), plain._attn(x), rtol=1e-5, atol=1e-5)
    other = block_of(build(padding="masked"), 1, shifted=True)
    other.load_state_dict(plain.state_dict())
    assert (other._attn(x) - plain._attn(x)).abs().max() > 0.05


@pytest.mark.parametrize("window", [7, 14])
def test_weights__go_to_timm_and_back_with_equal_results_where_nothing_is_padded(window: int) -> None:
    ours = build(window_size=window)
    theirs = timm.create_model(
        "swin_tiny_patch4_window7_224", **SMALL, window_size=window, norm_layer=nn.LayerNorm, strict_img_size=False
    ).eval()
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    for norm in theirs.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = 1e-6
    with torch.no_grad():
        x = images(224, 224, 1)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
        small = images(96, 96)
        assert (ours(small) - theirs(small)).abs().max() > 1e-3  # timm shifts before it pads


@pytest.mark.parametrize("padding", ["published", "masked", "shrunk"])
def test_attention__paths_agree_with_gradients(padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build(padding=padding), images(72, 104)
    calls = []
    real = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(a[0].shape) or real(*a, **k)
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bias_table" not in name)  # the fused kernel of a CPU is for biases without gradient
    results = []
    for fused in (True, False):
        for block in model.modules():
            if isinstance(block, PaddedSwinBlock):
                block.attn.fused_attn = fused
        model.zero_grad()
        out = model(x)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
        assert bool(calls) == fused
        calls.clear()
    for fused_result, explicit in zip(*results, strict=True):
        torch.testing.assert_close(fused_result, explicit, rtol=1e-4, atol=1e-4 * float(explicit.abs().max()) + 1e-7)


def test_recorded_attention__has_a_row_per_window_as_in_timm() -> None:
    model = build()
    with recorded_attention(model) as maps, torch.no_grad():
        model(images(96, 64))  # 24x16 cells: 4x3 windows
    assert maps["layers.0.blocks.0.attn"].shape == (2 * 12, 1, 49, 49)
    assert maps["layers.0.blocks.1.attn"].shape == (2 * 12, 1, 49, 49)
    assert all(torch.allclose(weights.sum(-1), torch.ones(())) for weights in maps.values())
    assert (maps["layers.0.blocks.1.attn"][-1] == 0).any()


@pytest.mark.parametrize("fused", [False, True])
def test_attend_windows__gives_each_window_its_own_bias_for_all_images(fused: bool) -> None:
    q, k, v = torch.randn(3, 2, 3, 4, 5, 8).unbind(0)  # 2 images, 3 windows, 4 heads, 5 cells
    for bias in (torch.randn(3, 4, 5, 5), torch.randn(1, 4, 5, 5)):
        expected = ((q @ k.transpose(-2, -1)) * 0.5 + bias).softmax(-1) @ v
        torch.testing.assert_close(attend_windows(q, k, v, bias, 0.5, fused, nn.Dropout(0.0)), expected)


def test_table__may_change_in_any_way_between_calls() -> None:
    model, x = build(), images(32, 32)
    with torch.no_grad():
        before = model(x)
        block_of(model, 0, False).attn.relative_position_bias_table.data.mul_(3)  # as some moving averages do
        assert (model(x) - before).abs().max() > 1e-3


def test_images__of_any_size_are_filled_up_with_zeros() -> None:
    model, x = build(), images(90, 67)
    with torch.no_grad():
        assert torch.equal(model(x), model(nn.functional.pad(x, (0, 1, 0, 2))))
        assert model.forward_features(x).shape == (2, 3, 3, 128)


@pytest.mark.filterwarnings("ignore::UserWarning")  # in timm's resampling of the tables
def test_windows__follow_the_size_that_a_model_is_built_for() -> None:
    model = build(img_size=96)
    assert [block_of(model, stage, True).window_size[0] for stage in range(4)] == [7, 7, 6, 3]
    model.set_input_size(img_size=(224, 224), window_size=7)
    assert [block_of(model, stage, True).window_size[0] for stage in range(4)] == [7, 7, 7, 7]
    assert model(images(96, 224)).shape == (2, 5)


@pytest.mark.slow
def test_compile__takes_one_size_after_another() -> None:
    """With the sizes left open, the second one would take minutes."""
    model = build(depths=(1, 2, 1, 1), padding="masked")
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        for size in ((96, 72), (96, 96), (64, 130)):
            torch.testing.assert_close(compiled(images(*size)), model(images(*size)), rtol=1e-5, atol=1e-5)


def test_padding__unknown_is_refused() -> None:
    with pytest.raises(ValueError, match=r"padding is 'reflect'; it must be one of 'published', 'masked', 'shrunk'"):
        build(padding="reflect")
