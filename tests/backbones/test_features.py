"""FeatureBackbone: one pass, right shapes, right places, the model's own logits."""

import copy

import pytest
import timm
import torch
from torch import nn

from backbones.reduced import BY_NAME, FAMILIES, Family
from paucal.backbones.features import FeatureBackbone
from paucal.types import FeatureRequest, UserError

LAST, LAST_RAW = FeatureRequest("last"), FeatureRequest("last", norm=False)
STAGES, STAGES_RAW = FeatureRequest("stages"), FeatureRequest("stages", norm=False)
BLOCKS, BLOCKS_RAW = FeatureRequest("blocks"), FeatureRequest("blocks", norm=False)
ALL = (LAST, LAST_RAW, STAGES, STAGES_RAW, BLOCKS, BLOCKS_RAW)

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def some_families(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", [BY_NAME[name] for name in names], ids=lambda f: f.name)


@every_family
def test_feature_backbone__answers_all_requests_with_the_right_shapes_and_the_models_own_logits(
    family: Family,
) -> None:
    backbone, images = family.build(), family.images()
    with torch.no_grad():
        expected = backbone.model(images)
        answers = backbone.extract(images, ALL)
        alone = backbone(images)
    assert (backbone.grid, backbone.dim, backbone.num_classes) == (family.grid, family.dim, 5)
    assert [tuple(answer.grids[-1].shape[:2]) for answer in answers[:2]] == [(2, family.dim)] * 2
    assert tuple(answers[0].grids[0].shape[2:]) == family.grid
    assert [len(answer.grids) for answer in answers] == [1, 1, *[family.stages] * 2, *[family.blocks] * 2]
    assert all(torch.equal(answer.logits, expected) for answer in answers)
    assert torch.equal(alone.grids[0], answers[0].grids[0])
    assert torch.equal(alone.logits, expected)
    assert answers[0].pooled.shape == (2, family.dim)


@every_family
def test_feature_backbone__runs_the_model_once(family: Family) -> None:
    backbone = family.build()
    calls: list[int] = []
    first = next(m for m in backbone.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_hook(lambda *_: calls.append(1))
    backbone.extract(family.images(), ALL)
    assert len(calls) == 1


# timm reshapes its intermediate maps itself, with sizes taken from the embedding: an independent reading.
@some_families(
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "swin_tiny_patch4_window7_224",
    "twins_svt_small",
    "convnext_atto",
    "cait_xxs24_224",
    "xcit_nano_12_p16_224",
    "pit_ti_224",
    "coat_lite_tiny",
    "mixer_s32_224",
    "vit_mini",
)
def test_blocks__end_each_stage_in_timms_own_map(family: Family) -> None:
    backbone, images = family.build(), family.images()
    with torch.no_grad():
        maps = backbone.model.forward_intermediates(images, intermediates_only=True)
        stages, blocks = backbone.extract(images, (STAGES_RAW, BLOCKS_RAW))
    assert all(torch.equal(grid, timms) for grid, timms in zip(stages.grids, maps, strict=True))
    for timms in maps:
        assert any(grid.shape == timms.shape and torch.equal(grid, timms) for grid in blocks.grids)
    assert torch.equal(blocks.grids[-1], maps[-1])


@some_families("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "twins_svt_small", "cait_xxs24_224", "vit_mini")
def test_norm__is_the_models_norm_on_the_last_block(family: Family) -> None:
    backbone, images = family.build(), family.images()
    nn.init.uniform_(backbone.model.norm.weight)
    with torch.no_grad():
        last, raw, stages, stages_raw, blocks, blocks_raw = (a.grids for a in backbone.extract(images, ALL))
        normed = backbone.model.norm(raw[0].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(last[0], normed, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(last[0], raw[0], atol=1e-2)
    assert torch.equal(stages[-1], last[0])
    assert torch.equal(blocks[-1], last[0])
    assert torch.equal(stages_raw[-1], raw[0])
    assert torch.equal(blocks_raw[-1], raw[0])
    assert torch.equal(blocks[0], blocks_raw[0])


@some_families("resnet18", "pvt_v2_b0", "convnext_atto")
def test_norm__changes_nothing_where_the_model_has_none(family: Family) -> None:
    last, raw = family.build().extract(family.images(), (LAST, LAST_RAW))
    assert torch.equal(last.grids[0], raw.grids[0])


@pytest.mark.parametrize(
    "family",
    # Deep untrained convnets wash a place out; their maps need no reshaping anyway.
    [family for family in FAMILIES if family.name not in ("regnetx_002", "efficientnet_b0")],
    ids=lambda family: family.name,
)
def test_grids__keep_rows_and_columns_apart(family: Family) -> None:
    backbone = family.build()
    stride = [side // cells for side, cells in zip(family.size, family.grid, strict=True)]
    # The last cell of the first row: another place under any transposition or wrong width.
    row, column = 0, family.grid[1] - 1
    images = family.images(1)
    changed = images.clone()
    top, left = row * stride[0], column * stride[1]
    changed[..., top : top + stride[0], left : left + stride[1]] += 3.0
    with torch.no_grad():
        answers = [backbone.extract(x, (STAGES_RAW, BLOCKS_RAW, LAST_RAW)) for x in (images, changed)]
    for before, after in zip(*answers, strict=True):
        for a, b in zip(before.grids, after.grids, strict=True):
            change = nn.functional.adaptive_max_pool2d((a - b).abs().sum(1), family.grid)[0]
            assert divmod(int(change.argmax()), family.grid[1]) == (row, column), a.shape


def test_swin__is_read_channels_last_where_channels_equal_rows() -> None:
    arguments = {
        "img_size": 96,
        "embed_dim": 24,
        "depths": (1, 1, 1, 1),
        "num_heads": (1, 2, 3, 6),
        "window_size": 6,
    }
    model = timm.create_model("swin_tiny_patch4_window7_224", **arguments).eval()
    images = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        blocks = FeatureBackbone(model, (96, 96))(images, BLOCKS_RAW)
        maps = model.forward_intermediates(images, intermediates_only=True)
    assert blocks.grids[0].shape == (1, 24, 24, 24)
    assert all(torch.equal(a, b) for a, b in zip(blocks.grids, maps, strict=True))


@some_families("vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "cait_xxs24_224", "pit_ti_224")
def test_pooled__is_the_class_token(family: Family) -> None:
    backbone, images = family.build(), family.images()
    with torch.no_grad():
        assert torch.equal(backbone(images).pooled, backbone.model.forward_features(images)[:, 0])


@some_families("swin_tiny_patch4_window7_224", "resnet18", "vit_mini")
def test_pooled__is_the_mean_over_cells_without_class_token(family: Family) -> None:
    features = family.build()(family.images())
    torch.testing.assert_close(features.pooled, features.grids[0].mean((2, 3)))


def test_logits__are_none_without_classifier() -> None:
    features = BY_NAME["vit_mini"].build(num_classes=0)(BY_NAME["vit_mini"].images())
    assert features.logits is None
    assert features.pooled.shape == (2, 128)


@some_families("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18", "pit_ti_224")
def test_gradient__flows_from_every_level_to_the_first_layer(family: Family) -> None:
    backbone = family.build().train()
    for request in (LAST_RAW, STAGES, BLOCKS):
        backbone.zero_grad()
        backbone(family.images(), request).grids[0].square().sum().backward()
        first = next(m for m in backbone.modules() if isinstance(m, nn.Conv2d))
        assert first.weight.grad.abs().sum() > 0


@some_families("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224")
def test_blocks__are_the_same_under_gradient_checkpointing(family: Family) -> None:
    backbone, images = family.build(), family.images()
    plain = backbone(images, BLOCKS_RAW).grids
    plain[1].square().sum().backward()
    weight = next(m for m in backbone.modules() if isinstance(m, nn.Conv2d)).weight
    expected = weight.grad.clone()
    backbone.zero_grad()
    backbone.model.set_grad_checkpointing(True)
    checkpointed = backbone(images, BLOCKS_RAW).grids
    checkpointed[1].square().sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))
    torch.testing.assert_close(weight.grad, expected)


@some_families("resnet18", "vit_tiny_patch16_224")
def test_shapes__agree_with_a_forward_pass_and_leave_no_trace(family: Family) -> None:
    backbone = family.build().train()
    backbone.model.get_submodule(next(iter(dict(backbone.model.named_children())))).eval()
    modes = [module.training for module in backbone.modules()]
    state = copy.deepcopy(backbone.state_dict())
    generator = torch.get_rng_state()
    shapes = backbone.shapes(STAGES)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in backbone.modules()] == modes
    assert all(torch.equal(state[key], value) for key, value in backbone.state_dict().items())
    assert shapes == [tuple(grid.shape[1:]) for grid in backbone(family.images(), STAGES).grids]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2, "dynamic_img_size": True}),
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "depths": (1, 1, 1, 1), "dynamic_img_size": True}),
        ("resnet18", {}),
        ("pvt_v2_b0", {"depths": (1, 1, 1, 1)}),
        ("vit_mini", {"img_size": 64, "depth": 1, "dynamic_img_size": True}),
    ],
)
def test_feature_backbone__takes_two_crop_sizes(name: str, arguments: dict) -> None:
    backbone = FeatureBackbone(timm.create_model(name, num_classes=2, **arguments), (64, 64)).eval()
    small, large = backbone.shapes(LAST), backbone.shapes(LAST, (96, 160))
    assert small == [(backbone.dim, *backbone.grid)]
    stride = 64 // backbone.grid[0]
    assert large == [(backbone.dim, 96 // stride, 160 // stride)]
    assert backbone.cell_size == (stride, stride)


def test_deepcopy__reads_its_own_blocks() -> None:
    family = BY_NAME["vit_tiny_patch16_224"]
    backbone = family.build()
    other = copy.deepcopy(backbone)
    nn.init.zeros_(other.model.patch_embed.proj.weight)
    with torch.no_grad():
        mine, theirs = backbone(family.images(), BLOCKS), other(family.images(), BLOCKS)
    assert not torch.equal(mine.grids[0], theirs.grids[0])
    assert torch.equal(theirs.grids[0][0], theirs.grids[0][1])  # without the image, all images look alike


def test_hooks__keep_nothing_after_the_pass() -> None:
    family = BY_NAME["vit_tiny_patch16_224"]
    backbone = family.build()
    backbone(family.images(), BLOCKS)
    assert backbone._hooked.tensors is None
    with pytest.raises(RuntimeError):
        backbone(torch.zeros(1, 7, 64, 96))
    assert backbone._hooked.tensors is None


class NoGrid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(images).mean((2, 3))


def test_feature_backbone__refuses_a_model_without_grid() -> None:
    with pytest.raises(UserError, match=r"NoGrid has no spatial grid; choose a model with one"):
        FeatureBackbone(NoGrid(), (32, 32))


def test_blocks__are_refused_where_they_are_not_in_row_order() -> None:
    model = timm.create_model("hiera_tiny_224", num_classes=0, embed_dim=16, stages=(1, 1, 1, 1))
    backbone = FeatureBackbone(model, (224, 224))
    with pytest.raises(UserError, match="hiera_tiny_224 has no blocks that output grids; use 'stages'"):
        backbone(torch.zeros(1, 3, 224, 224), BLOCKS)
