"""Vision Longformer as a timm model and as a backbone of ours, and what its arguments do."""

import copy
import pickle

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.vil import VisionLongformer, resize_positions
from paucal.backbones.families.vil_attention import AttentionSettings, FullAttention, SparseAttention
from paucal.backbones.features import FeatureBackbone
from paucal.types import FeatureRequest
from rounding import exact_and_bound, require_within

SMALL = {
    "img_size": 96,
    "embed_dims": (8, 16, 24, 32),
    "depths": (1, 2, 2, 1),
    "num_heads": (1, 2, 2, 4),
    "window_size": 3,
}
SIZE = (64, 96)
TWO_TOKENS = {"global_tokens": (2, 2, 2, 2)}


def build(**changes):
    torch.manual_seed(1)
    model = timm.create_model("vil_tiny", **{"num_classes": 5, **SMALL, **changes}).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:  # large enough that all is seen in the logits
            torch.nn.init.normal_(parameter, std=1.0 if parameter.ndim != 2 else parameter.shape[1] ** -0.5)
    return model


def images(size=SIZE, count=2):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(2))


def logits(model, size=SIZE):
    with torch.no_grad():
        return model(images(size))


@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("vil_tiny", {}, 6_719_698),
        ("vil_tiny", {"positions": "absolute"}, 6_707_080),
        ("vil_tiny", {"depths": (1, 2, 8, 1)}, 6_386_674),
        ("vil_tiny", {"sparse": (True,) * 4}, 6_723_058),
        ("vil_tiny", {"share_projections": False}, 6_719_698 + 46_656),
        ("vil_small", {}, 24_657_328),
        ("vil_small", {"positions": "absolute"}, 24_635_752),
        ("esvit_vil_tiny", {}, 28_338_352),
        ("esvit_vil_tiny_paper_heads", {}, 28_303_552),
        ("esvit_vil_tiny", {"num_classes": 0}, 27_569_352),
        ("esvit_vil_tiny_paper_heads", {"num_classes": 0}, 27_534_552),
    ],
)
def test_parameters__are_those_of_the_published_programs(name, arguments, count):
    with meta_device():
        model = timm.create_model(name, **arguments)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize(
    ("name", "published", "twice"),
    [
        ("vil_tiny", 1.460, 2 * (3137 * 48**2 + 785 * 96**2)),
        ("vil_small", 5.314, 2 * (3137 * 96**2 + 2 * 785 * 192**2)),
        ("esvit_vil_tiny", 5.579, 4 * (3137 * 96**2 + 785 * 192**2)),
    ],
)
def test_arithmetic__is_the_published_less_what_was_computed_twice(name, published, twice):
    """The published programs project keys and values a second time for the global tokens, with equal weights."""
    with meta_device():
        model = timm.create_model(name).eval()
        x = torch.zeros(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert (counter.get_total_flops() / 2 + twice) / 1e9 == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize("changes", [{}, {"share_projections": False}, {"positions": "absolute"}, TWO_TOKENS])
def test_gradients__reach_all_but_what_the_dropped_tokens_alone_depend_on(changes):
    model = build(**changes).train()
    model.requires_grad_(True)
    frozen = {name for name, p in build(**changes).named_parameters() if not p.requires_grad}
    model(images()).square().sum().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    # Nothing reads the last values of the last stage's tokens either, unless `global_pool` is "token".
    assert silent - {"stages.3.blocks.0.attn.g2g_relative_position_bias"} == frozen
    relative, own = "positions" not in changes, "share_projections" in changes
    assert len(frozen) == 3 * relative + 2 * 6 * own


def test_random_neighbour__is_switched_for_all_layers_and_trains():
    model = build(random_neighbour=True)
    calm, x = logits(model), images()
    assert torch.equal(calm, logits(build()))  # at evaluation all are seen
    model.train()
    assert not torch.equal(model(x), model(x))
    model(x).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    model.set_random_neighbour(False)
    assert not any(part.random_neighbour for part in model.modules() if isinstance(part, SparseAttention))
    torch.testing.assert_close(model(x).detach(), calm)


def test_random_neighbour__is_the_same_in_both_passes_of_a_checkpoint():
    plain, saving = build(random_neighbour=True).train(), build(random_neighbour=True).train()
    saving.set_grad_checkpointing()
    grads = []
    for model in (plain, saving):
        torch.manual_seed(4)
        model(images()).square().sum().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "exact"},
        {"mode": "cyclic"},
        {"mode": "own"},
        {"window_size": 2},
        {"positions": "absolute"},
        {"share_projections": False},
        {"sparse": (False, True, False, False)},
        {"global_tokens": (0, 1, 1, 0)},
        {"qkv_bias": False},
    ],
)
def test_arguments__change_the_function(changes):
    state = build().state_dict()
    model = build(**changes)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    model.load_state_dict({n: v for n, v in state.items() if shapes.get(n) == v.shape}, strict=False)
    assert not torch.allclose(logits(model), logits(build()), atol=1e-4)


def test_positions__absolute_are_halves_of_rows_and_columns():
    model = build(positions="absolute")
    embed, x = model.stages[0].embed, images((96, 96))
    bare = copy.deepcopy(embed)
    for table in (bare.x_pos_embed, bare.y_pos_embed, bare.cls_pos_embed):
        torch.nn.init.zeros_(table)
    tokens, grid = embed(x)
    added = (tokens - bare(x)[0])[0]
    torch.testing.assert_close(added[0], embed.cls_pos_embed[0, 0])
    for row, column in [(0, 0), (3, 17), (23, 5)]:
        wanted = torch.cat((embed.x_pos_embed[0, row], embed.y_pos_embed[0, column]))
        torch.testing.assert_close(added[1 + row * grid[1] + column], wanted)
    torch.testing.assert_close(embed(images((64, 96)))[0].shape, torch.Size((2, 1 + 16 * 24, 8)))


def test_resize_positions__equals_resizing_the_picture_of_both():
    torch.manual_seed(0)
    rows, columns = torch.randn(1, 6, 2), torch.randn(1, 8, 2)
    picture = torch.cat((rows.unsqueeze(2).expand(-1, -1, 8, -1), columns.unsqueeze(1).expand(-1, 6, -1, -1)), 3)
    wanted = torch.nn.functional.interpolate(picture.permute(0, 3, 1, 2), size=(9, 5), mode="bicubic")
    torch.testing.assert_close(resize_positions(rows, 9), wanted[:, :2, :, 3].transpose(1, 2))
    torch.testing.assert_close(resize_positions(columns, 5), wanted[:, 2:, 4].transpose(1, 2))


def test_bias__is_looked_up_by_offset_at_other_sizes():
    torch.manual_seed(0)
    attention = FullAttention(AttentionSettings(4, 2, 1), (4, 3))
    table = attention.local_relative_position_bias_table
    for height, width in [(4, 3), (2, 2), (5, 6)]:
        bias = attention.bias((height, width))
        assert bias.shape == (2, 1 + height * width, 1 + height * width)
        for one in range(height * width):
            for other in range(height * width):
                down = max(-3, min(3, one // width - other // width))  # the farthest entry stands for all beyond
                across = max(-2, min(2, one % width - other % width))
                assert torch.equal(bias[:, 1 + one, 1 + other], table[(down + 3) * 5 + across + 2])
        assert torch.equal(bias[:, 0, 0], attention.g2g_relative_position_bias[:, 0, 0])
        assert (bias[:, 0, 1:] == attention.g2l_relative_position_bias[0]).all()
        assert (bias[:, 1:, 0] == attention.g2l_relative_position_bias[1]).all()


def test_bias__as_a_picture_is_the_resized_matrix():
    torch.manual_seed(0)
    attention = FullAttention(AttentionSettings(4, 2), (4, 4), "picture")
    native = attention.bias((4, 4))
    torch.testing.assert_close(native, FullAttention.bias(attention, (4, 4)))
    wanted = torch.nn.functional.interpolate(native[None], size=(6, 6), mode="bicubic")[0]
    torch.testing.assert_close(attention.bias((2, 3)), wanted)


def test_set_input_size__resizes_tables_and_keeps_what_is_the_same():
    model = build()
    before = logits(model, (96, 96))
    model.set_input_size(96)
    assert torch.equal(logits(model, (96, 96)), before)
    model.set_input_size((128, 96))
    assert model.stages[2].blocks[0].attn.local_relative_position_bias_table.shape == (15 * 11, 2)
    other = build(img_size=(128, 96))
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other, (128, 96)), logits(model, (128, 96)))
    absolute = build(positions="absolute")
    absolute.set_input_size((128, 96))
    assert absolute.stages[3].embed.x_pos_embed.shape == (1, 4, 16)
    assert logits(absolute, (128, 96)).shape == (2, 5)


def test_global_pool__reads_the_token_or_the_cells():
    model = build(**TWO_TOKENS, global_pool="token")
    features = model.forward_features(images())
    assert features.shape == (2, 2 + 2 * 3, 32)
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), features[:, 0])
    model.reset_classifier(3, "avg")
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), features[:, 2:].mean(1))


def test_blocks__are_read_without_their_global_tokens():
    model = build(**TWO_TOKENS)
    kept = {}
    for name in ("stages.0.blocks.0", "stages.3.blocks.0"):
        model.get_submodule(name).register_forward_hook(lambda m, i, out, name=name: kept.update({name: out}))
    backbone = FeatureBackbone(model, SIZE)
    grids = backbone(images(), FeatureRequest("blocks", norm=False)).grids
    assert [tuple(grid.shape[1:]) for grid in grids] == [
        (8, 16, 24), (16, 8, 12), (16, 8, 12), (24, 4, 6), (24, 4, 6), (32, 2, 3),
    ]  # fmt: skip
    for name, grid in zip(kept, (grids[0], grids[-1]), strict=True):
        assert torch.equal(grid.flatten(2).transpose(1, 2), kept[name][:, 2:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "all"}, "mode is 'all'; choose one of 'blocks', 'exact', 'cyclic', 'own'"),
        ({"positions": "none"}, "positions is 'none'"),
        ({"bias_resize": "bicubic"}, "bias_resize is 'bicubic'"),
        ({"window_size": 0}, "window_size is 0"),
        ({"num_heads": (3, 3, 6)}, "num_heads 3"),
        ({"num_heads": (5, 3, 3, 6)}, "embed_dims has 48, which is not a multiple of 5"),
        ({"depths": (1, 0, 1, 1)}, "depths is"),
        ({"global_tokens": (1, 1, -1, 0)}, "global_tokens is"),
        ({"img_size": 100}, "images have 100x100 pixels; both sides must be multiples of 32: use 96x96"),
        ({"mode": "own", "random_neighbour": True}, "has no neighbours"),
        ({"global_pool": "token"}, "no global tokens"),
        ({"embed_dims": (47, 96, 192, 384), "positions": "absolute"}, "absolute positions need even numbers"),
    ],
)
def test_arguments__that_do_not_fit_are_refused(arguments, message):
    with meta_device(), pytest.raises(ValueError, match=message):
        VisionLongformer(**arguments)


def test_images__of_broken_cells_are_refused():
    for call in (build(), build().forward_intermediates):
        with pytest.raises(ValueError, match="images have 70x96 pixels; both sides must be multiples of 32: use 64x96"):
            call(images((70, 96)))
    with pytest.raises(ValueError, match="no global tokens"):
        build().reset_classifier(3, "token")


def test_caches__stay_out_of_states_and_copies():
    model = build()
    expected = logits(model)
    assert not any("index" in name for name in model.state_dict())
    assert torch.equal(logits(pickle.loads(pickle.dumps(model))), expected)
    assert torch.equal(logits(copy.deepcopy(model)), expected)


@pytest.mark.slow
def test_compile__takes_other_sizes():
    torch.compiler.reset()
    model = build()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for size in (SIZE, (96, 64), (160, 128)):
        torch.testing.assert_close(logits(compiled, size), logits(model, size))


def test_half_precision__is_as_close_as_rounding_allows():
    model = build().train()
    exact, bound = exact_and_bound(model, images(), torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(images())
    require_within(out.detach(), exact, bound)
    out.float().sum().backward()
    assert torch.isfinite(build().bfloat16()(images().bfloat16())).all()


@pytest.mark.slow
def test_export__keeps_the_function():
    model = build()
    program = torch.export.export(model, (images(),))
    torch.testing.assert_close(program.module()(images()), logits(model))
    assert torch.equal(logits(model), logits(build()))  # the caches are sound afterwards
