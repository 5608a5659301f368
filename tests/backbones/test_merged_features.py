"""The grids that Swin's stages hand on after merging, against the model computed stage by stage."""

import pytest
import timm
import torch
from torch import Tensor, nn

import paucal.backbones  # noqa: F401 (registers our models)
from backbones.reduced import BY_NAME, SWIN
from paucal.backbones.features import FeatureBackbone
from paucal.objectives import DrLoc
from paucal.types import Batch, FeatureRequest, Features, Progress, UserError

MERGED, MERGED_RAW = FeatureRequest("merged"), FeatureRequest("merged", norm=False)


def stage_by_stage(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return what each stage gives in the order of Swin's own program: blocks first, then merging, if any."""
    stages = list(model.get_submodule("layers").children())
    x, grids = model.get_submodule("patch_embed")(images), []
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        x = stage.get_submodule("blocks")(x)
        x = x if following is None else following.get_submodule("downsample")(x)
        grids.append(x.permute(0, 3, 1, 2))
    return grids


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "esvit_swin_tiny_patch4_window7_224"])
def test_merged__are_what_the_stages_hand_on(name):
    torch.manual_seed(1)
    model = timm.create_model(name, num_classes=5, **SWIN)
    nn.init.uniform_(model.get_parameter("norm.weight"))
    backbone, images = FeatureBackbone(model, (64, 96)).eval(), torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = stage_by_stage(model, images)
        merged, raw, last = (
            answer.grids for answer in backbone.extract(images, (MERGED, MERGED_RAW, FeatureRequest()))
        )
    assert [tuple(grid.shape[1:]) for grid in raw] == [(48, 8, 12), (96, 4, 6), (192, 2, 3), (192, 2, 3)]
    assert all(torch.equal(grid, own) for grid, own in zip(raw, expected, strict=True))
    assert all(torch.equal(grid, own) for grid, own in zip(merged[:3], expected[:3], strict=True))
    assert torch.equal(merged[3], last[0])
    assert not torch.allclose(merged[3], raw[3], atol=1e-2)


def test_merged__can_be_asked_for_beside_all_others():
    family = BY_NAME["swin_tiny_patch4_window7_224"]
    backbone, images = family.build(), family.images()
    others = (FeatureRequest("stages", norm=False), FeatureRequest("blocks", norm=False))
    with torch.no_grad():
        alone = backbone(images, MERGED_RAW).grids
        stages, blocks, merged = (answer.grids for answer in backbone.extract(images, (*others, MERGED_RAW)))
    assert all(torch.equal(one, two) for one, two in zip(alone, merged, strict=True))
    assert [grid.shape for grid in merged[:3]] == [grid.shape for grid in stages[1:]]
    assert torch.equal(merged[3], blocks[-1])
    for grid, stage in zip(merged[:3], stages[1:], strict=True):
        assert not torch.allclose(grid, stage, atol=1e-2)  # the next stage's blocks have changed it


def test_merged__of_swin_t_have_the_published_sizes_and_parameters():
    model = timm.create_model("swin_tiny_patch4_window7_224")
    backbone = FeatureBackbone(model, (224, 224))
    shapes = backbone.shapes(MERGED)
    assert shapes == [(192, 28, 28), (384, 14, 14), (768, 7, 7), (768, 7, 7)]
    dims, sizes = [dim for dim, _, _ in shapes], [(rows, columns) for _, rows, columns in shapes]
    term = DrLoc.from_preset("reference", dims, sizes, model_name="swin_tiny_patch4_window7_224", levels="merged")
    # The program's Swin-T of 1000 classes with one MLP for each stage.
    assert sum(p.numel() for module in (model, term) for p in module.parameters()) == 31_507_818


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_drloc__sums_its_loss_over_them(preset):
    family = BY_NAME["swin_tiny_patch4_window7_224"]
    backbone, images = family.build(), family.images()
    shapes = backbone.shapes(MERGED)
    sizes = [(rows, columns) for _, rows, columns in shapes]
    term = DrLoc.from_preset(preset, [dim for dim, _, _ in shapes], sizes, levels="merged", hidden=16, n_pairs=12)
    seen: list[tuple[Tensor, Tensor]] = []
    for head in term.heads:
        head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    with torch.no_grad():
        loss = term(backbone(images, term.request), Batch(torch.arange(2), []), Progress(0, 10, 5)).item()
        expected = stage_by_stage(backbone.model, images)
        if preset == "paper":  # which reads the last grid after the norm
            expected[3] = backbone(images).grids[0]
        again = term(Features(expected, images, None), Batch(torch.arange(2), []), Progress(0, 10, 5)).item()
        assert all(torch.equal(grid, own) for (grid, _), own in zip(seen[:4], expected, strict=True))
        by_hand = sum(naive(head, *one, preset) for head, one in zip(term.heads, seen[:4], strict=True))
    assert loss == again
    assert loss == pytest.approx(by_hand, rel=1e-5)


def naive(head: nn.Module, grid: Tensor, pairs: Tensor, preset: str) -> float:
    """Return the mean error of all pairs and both coordinates, one pair after the other."""
    sides = grid.shape[2:] if preset == "paper" else (1, 1)
    total = 0.0
    for image in range(len(grid)):
        for (i, j), (p, h) in pairs[image].tolist():
            cells = torch.cat((grid[image, :, i, j], grid[image, :, p, h]))
            hidden = cells
            for layer in ("first", "second"):
                hidden = head.get_submodule(layer)(hidden).relu()
            said = head.get_submodule("last")(hidden).tolist()
            total += abs(said[0] - abs(i - p) / sides[0]) + abs(said[1] - abs(j - h) / sides[1])
    return total / (pairs.shape[0] * pairs.shape[1] * 2)


@pytest.mark.parametrize("name", ["cvt_13", "drloc_cvt_13", "t2t_vit_14", "resnet18_cifar", "vit_mini"])
def test_models__without_merging_layers_say_so(name):
    small = {"t2t_vit_14": {"depth": 1, "embed_dim": 48, "num_heads": 2}, "vit_mini": {"depth": 1}}
    side = 32 if name in ("vit_mini", "resnet18_cifar") else 64
    size = {"img_size": side} if name in ("t2t_vit_14", "vit_mini") else {}
    backbone = FeatureBackbone(timm.create_model(name, num_classes=2, **size, **small.get(name, {})), (side, side))
    with pytest.raises(UserError, match=rf"{name} has no layers that merge patches.*use 'stages' or 'blocks' instead"):
        backbone.shapes(MERGED)
