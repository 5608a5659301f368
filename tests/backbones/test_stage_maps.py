"""Maps of all strides from any backbone: exact sizes, the model's own values, and gradients that arrive."""

import copy
from functools import cache

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from backbones.reduced import SWIN
from paucal.backbones import BackboneSpec, FeatureBackbone
from paucal.backbones.stage_maps import PyramidBackbone, build_pyramid_backbone, pyramid_factors
from paucal.types import FeatureRequest, UserError

SPECS = {
    "stages, batch norm": (BackboneSpec("resnet18", 0, image_size=(128, 128)), (4, 8, 16, 32)),
    "stages, channels last": (
        BackboneSpec(
            "swin_tiny_patch4_window7_224",
            0,
            image_size=(128, 128),
            arguments={name: value for name, value in SWIN.items() if name != "img_size"},
        ),
        (4, 8, 16, 32),
    ),
    "stages, one of them above stride 4": (
        BackboneSpec("tf_efficientnet_lite0", 0, image_size=(128, 128)),
        (4, 8, 16, 32),
    ),
    "three stages": (BackboneSpec("pit_ti_224", 0, image_size=(96, 96), arguments={"depth": [1, 1, 1]}), (8, 16, 32)),
    "single grid": (
        BackboneSpec("vit_tiny_patch16_224", 0, image_size=(96, 96), arguments={"depth": 2, "patch_size": 16}),
        (4, 8, 16, 32),
    ),
    "single grid of stride 4": (
        BackboneSpec("vit_mini", 0, image_size=(32, 32), arguments={"depth": 1, "patch_size": 4}),
        (4, 8, 16, 32),
    ),
    "patches of 14 pixels": (
        BackboneSpec(
            "vit_small_patch14_dinov2",
            0,
            image_size=(96, 96),
            arguments={"depth": 1, "embed_dim": 48, "num_heads": 3, "patch_size": 14},
        ),
        (4, 8, 16, 32),
    ),
}
every_kind = pytest.mark.parametrize("kind", SPECS)


@cache
def kept(kind: str) -> PyramidBackbone:
    torch.manual_seed(0)
    return build_pyramid_backbone(SPECS[kind][0])


def built(kind: str) -> PyramidBackbone:
    return copy.deepcopy(kept(kind))


@every_kind
@pytest.mark.parametrize("size", [(64, 96), (50, 71), (33, 32)])
def test_maps__have_the_padded_size_over_their_stride(kind: str, size: tuple[int, int]):
    maps = built(kind).eval()
    assert maps.strides == SPECS[kind][1]
    with torch.no_grad():
        found = maps(torch.randn(2, 3, *size))
    height, width = maps.padded_size(*size)
    assert (height % 32, width % 32) == (0, 0)
    assert (height >= size[0], width >= size[1]) == (True, True)
    expected = [(2, n, height // s, width // s) for n, s in zip(maps.channels, maps.strides, strict=True)]
    assert [tuple(one.shape) for one in found] == expected


@every_kind
def test_maps__give_every_trainable_parameter_a_gradient(kind: str):
    maps = built(kind).train()
    sum((one.square().mean() for one in maps(torch.randn(2, 3, 64, 64))), start=torch.zeros(())).backward()
    trainable = {name: p for name, p in maps.named_parameters() if p.requires_grad}
    assert len(trainable) > 10
    assert [name for name, p in trainable.items() if p.grad is None] == []


@pytest.mark.parametrize("kind", ["stages, one of them above stride 4", "single grid"])
def test_maps__from_a_coarser_stride_on_are_the_same(kind: str):
    torch.manual_seed(0)
    fewer = build_pyramid_backbone(SPECS[kind][0], finest=8).eval()
    whole = built(kind).eval()
    missing = fewer.load_state_dict(whole.state_dict(), strict=False).missing_keys
    images = torch.randn(1, 3, 64, 96)
    assert fewer.strides == (8, 16, 32)
    if kind == "single grid":  # its levels are counted from the finest
        fewer.levels = whole.levels[1:]
    else:
        assert missing == []
    with torch.no_grad():
        for own, other in zip(fewer(images), whole(images)[1:], strict=True):
            torch.testing.assert_close(own, other)


def test_maps__release_what_no_map_needs():
    maps = built("stages, one of them above stride 4")
    still = {name for name, p in maps.named_parameters() if not p.requires_grad}
    assert still == {f"backbone.model.{name}" for name in ("conv_head.weight", "bn2.weight", "bn2.bias")}


def test_maps__of_a_model_with_batch_norm_are_those_of_timm():
    maps = built("stages, batch norm").eval()
    theirs = timm.create_model("resnet18", features_only=True, out_indices=(1, 2, 3, 4)).eval()
    theirs.load_state_dict(maps.backbone.model.state_dict(), strict=False)
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for own, other in zip(maps(images), theirs(images), strict=True):
            torch.testing.assert_close(own, other)


def test_maps__of_a_channels_last_model_are_normalised_over_their_channels():
    maps = built("stages, channels last").eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        raw = maps.backbone(images, FeatureRequest("stages", norm=False)).grids
        for own, grid in zip(maps(images), raw, strict=True):
            expected = F.layer_norm(grid.permute(0, 2, 3, 1), grid.shape[1:2], eps=1e-6).permute(0, 3, 1, 2)
            torch.testing.assert_close(own, expected)


def test_maps__are_those_of_an_image_padded_on_its_right_and_bottom():
    maps, image = built("stages, batch norm").eval(), torch.randn(1, 3, 50, 70)
    padded = torch.zeros(1, 3, 64, 96)
    padded[:, :, :50, :70] = image
    with torch.no_grad():
        for own, other in zip(maps(image), maps(padded), strict=True):
            torch.testing.assert_close(own, other)


def test_pyramid__keeps_the_grid_itself_and_takes_the_largest_of_four_cells():
    maps, images = built("single grid").eval(), torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        grid, found = maps.backbone(images).grids[0], maps(images)
    torch.testing.assert_close(found[2], grid)
    torch.testing.assert_close(found[3][0, :, 0, 0], grid[0, :, :2, :2].amax((1, 2)))
    assert maps.channels == (48, 96, 192, 192)


def test_pyramid__enlarges_each_cell_into_its_own_place():
    """Without an attention between them a change in one cell stays within the 4x4 cells made of it."""
    maps = built("single grid").eval()
    level = maps.levels[0]
    grid = torch.randn(1, 192, 4, 6)
    changed = grid.clone()
    changed[0, :, 1, 2] += 1
    with torch.no_grad():
        rows, columns = (level(changed) - level(grid)).abs().amax((0, 1)).nonzero(as_tuple=True)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (4, 7, 8, 11)


def test_patches_of_14__see_the_image_at_fourteen_sixteenths():
    maps, sizes = built("patches of 14 pixels").eval(), []
    first = next(m for m in maps.backbone.model.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_hook(lambda module, given, made: sizes.append(given[0].shape[-2:]))
    with torch.no_grad():
        maps(torch.zeros(1, 3, 96, 128))
    assert sizes[-1] == (84, 112)


@pytest.mark.parametrize(("stride", "factors"), [(16, (4, 2, 1, 0.5)), (8, (2, 1, 0.5, 0.25)), (32, (8, 4, 2, 1))])
def test_pyramid_factors__begin_at_a_stride_of_four(stride: int, factors: tuple[float, ...]):
    assert pyramid_factors(stride) == factors
    assert stride / factors[0] == 4


def test_model_of_one_size__pads_to_it_and_refuses_larger_images():
    maps = built("three stages").eval()
    assert maps.fixed_size == (96, 96)
    assert maps.padded_size(10, 90) == (96, 96)
    with pytest.raises(UserError, match="built for 96x96 pixels, but got 97x96"):
        maps(torch.zeros(1, 3, 97, 96))


def test_model_of_one_size__that_no_stride_divides_is_refused():
    model = timm.create_model("pit_ti_224", img_size=80, depth=(1, 1, 1), num_classes=0)
    with pytest.raises(UserError, match="images of 80x80 pixels, but sides must be multiples of 32"):
        PyramidBackbone(FeatureBackbone(model, (80, 80)), any_size=False)


def test_stage_maps__keep_the_state_of_the_random_generator_and_of_batch_norms():
    torch.manual_seed(3)
    maps = built("stages, batch norm")
    fresh = BackboneSpec("resnet18", 0, image_size=(128, 128)).build()
    ours, theirs = maps.backbone.model.state_dict(), fresh.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if "running" in name)
    assert maps.backbone.model.training
