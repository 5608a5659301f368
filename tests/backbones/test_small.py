"""vit_mini: a timm model in every respect."""

import timm
import torch
from timm.optim import create_optimizer_v2

import paucal.backbones  # noqa: F401 (registers vit_mini)


def build(**arguments: object) -> torch.nn.Module:
    return timm.create_model("vit_mini", **{"depth": 2, "num_classes": 3, **arguments}).eval()


def test_vit_mini__has_a_million_parameters_and_8x8_cells_at_32_pixels() -> None:
    model = timm.create_model("vit_mini", num_classes=10)
    assert sum(p.numel() for p in model.parameters()) == 1_094_218
    assert model.forward_features(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 128)
    assert model.default_cfg["input_size"] == (3, 32, 32)
    assert timm.is_model("vit_mini")


def test_vit_mini__classifies_the_mean_of_the_normed_cells() -> None:
    model, images = build(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        cells = model.forward_features(images)
        torch.testing.assert_close(cells.mean(-1), torch.zeros(2, 64), atol=1e-5, rtol=0)
        torch.testing.assert_close(model(images), model.head(cells.mean(1)))


def test_vit_mini__gives_features_only() -> None:
    model = build(features_only=True, out_indices=(0, 1))
    assert [tuple(grid.shape) for grid in model(torch.zeros(1, 3, 32, 32))] == [(1, 128, 8, 8)] * 2
    assert model.feature_info.reduction() == [4, 4]


def test_vit_mini__takes_other_sizes_channels_and_classes() -> None:
    assert build(img_size=(16, 24), in_chans=1)(torch.zeros(1, 1, 16, 24)).shape == (1, 3)
    assert build(dynamic_img_size=True)(torch.zeros(1, 3, 48, 64)).shape == (1, 3)
    assert build(num_classes=0)(torch.zeros(1, 3, 32, 32)).shape == (1, 128)
    model = build()
    model.reset_classifier(7)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    model.set_input_size(img_size=64)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_vit_mini__is_the_same_under_gradient_checkpointing() -> None:
    model, images = build(), torch.randn(2, 3, 32, 32)
    plain = model(images)
    model.set_grad_checkpointing(True)
    assert torch.equal(model(images), plain)


def test_vit_mini__groups_parameters_for_decay() -> None:
    model = build()
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    scales = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays[id(model.pos_embed)] == 0
    assert decays[id(model.blocks[0].mlp.fc1.weight)] == 0.1
    # Stem, two blocks, head: each a factor of 0.5 below the next.
    order = [
        model.pos_embed,
        model.blocks[0].mlp.fc1.weight,
        model.blocks[1].mlp.fc1.weight,
        model.head.weight,
    ]
    assert [scales[id(p)] for p in order] == [0.125, 0.25, 0.5, 1.0]
    assert scales[id(model.patch_embed.backbone[0].conv.weight)] == 0.125
