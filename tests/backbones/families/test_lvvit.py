"""LV-ViT as a timm model and as a backbone of ours."""

import copy
import pickle

import pytest
import timm
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.attention_maps import recorded_attention
from paucal.backbones.families.lvvit import LvVit
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layers import classifier_modules, layer_ids
from paucal.backbones.spec import BackboneSpec
from paucal.types import FeatureRequest
from rounding import exact_and_bound, require_within

SMALL = {"img_size": (64, 96), "embed_dim": 24, "depth": 3, "num_heads": 3, "stem_width": 8}


def build(name: str = "lvvit_s", **changes: object) -> LvVit:
    torch.manual_seed(1)
    return timm.create_model(name, **{"num_classes": 5, **SMALL, **changes}).eval()


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 64, 96, generator=torch.Generator().manual_seed(2))


def test_plain_step__gives_every_parameter_a_gradient() -> None:
    model = build().train()
    torch.nn.functional.cross_entropy(model(images()), torch.tensor([1, 4])).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


def test_dense_step__gives_every_parameter_a_gradient() -> None:
    model = build(aux_weight=0.0).train()
    class_logits, token_logits = model.dense_logits(model.forward_features(images(3), mix_box=(1, 2, 3, 6)))
    (class_logits.square().mean() + token_logits.square().mean()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_reset_classifier__replaces_both() -> None:
    model = build()
    old = model.get_classifier()
    assert old == (model.head, model.aux_head)
    model.reset_classifier(7, "avg")
    assert model.global_pool == "avg"
    assert [tuple(layer.weight.shape) for layer in model.get_classifier()] == [(7, 24), (7, 24)]
    assert not set(model.get_classifier()) & set(old)
    assert model(images()).shape == (2, 7)
    model.reset_classifier(0)
    assert model(images()).shape == (2, 24)
    assert build(aux_head=False, num_classes=0)(images()).shape == (2, 24)


def test_configuration__names_the_layers_that_the_arguments_make() -> None:
    assert classifier_modules(build()) == ("head", "aux_head")
    assert classifier_modules(build(aux_head=False)) == ("head",)
    assert classifier_modules(build("lvvit_s_plain", aux_head=True)) == ("head", "aux_head")
    assert build("lvvit_vit_s").default_cfg["first_conv"] == "patch_embed.proj"
    assert build("lvvit_vit_s", stem="4_conv").default_cfg["first_conv"] == "patch_embed.conv1"
    assert build(stem="1_conv").default_cfg["first_conv"] == "patch_embed.proj"
    for model in (build(), build("lvvit_vit_s"), build(stem="6_conv", aux_head=False)):
        assert isinstance(model.get_submodule(model.default_cfg["first_conv"]), torch.nn.Conv2d)


def test_features__are_grids_of_every_block_and_before_and_after_the_norm() -> None:
    backbone = FeatureBackbone(build(), (64, 96))
    assert (backbone.grid, backbone.dim, backbone.cell_size) == ((4, 6), 24, (16, 16))
    requests = [FeatureRequest(), FeatureRequest(norm=False), FeatureRequest("blocks", norm=False)]
    with torch.no_grad():
        last, raw, blocks = backbone.extract(images(), requests)
        final, maps = backbone.model.forward_intermediates(images())
        tokens = backbone.model.forward_features(images())
        torch.testing.assert_close(last.logits, backbone.model(images()))
    assert len(blocks.grids) == 3
    for grid, expected in zip(blocks.grids, maps, strict=True):
        torch.testing.assert_close(grid, expected)
    torch.testing.assert_close(raw.grids[0], maps[-1])
    torch.testing.assert_close(last.grids[0].flatten(2).mT, tokens[:, 1:])
    torch.testing.assert_close(last.pooled, tokens[:, 0])
    torch.testing.assert_close(final, tokens)


def test_features_only__gives_maps() -> None:
    model = build(features_only=True, out_indices=(0, 2))
    assert [tuple(grid.shape) for grid in model(images())] == [(2, 24, 4, 6)] * 2


def test_small_images__get_finer_patches() -> None:
    spec = BackboneSpec("lvvit_t", 3, image_size=(32, 32), arguments={"depth": 1, "embed_dim": 24})
    assert spec.build().grid == (8, 8)
    assert BackboneSpec("lvvit_t", 3, image_size=(96, 128), arguments={"depth": 1}).build().grid == (12, 16)


def test_several_sizes__work_with_dynamic_positions() -> None:
    spec = BackboneSpec("lvvit_t", 0, image_size=(64, 64), arguments={"depth": 1, "patch_size": 8})
    backbone = spec.build([(64, 64), (32, 32)])
    assert backbone(torch.zeros(1, 3, 32, 32)).grids[0].shape == (1, 240, 4, 4)


def test_checkpointing__changes_nothing() -> None:
    model = build(drop_path_rate=0.1).train()
    results = []
    for enabled in (False, True):
        model.zero_grad()
        model.set_grad_checkpointing(enabled)
        torch.manual_seed(3)
        model(images()).square().sum().backward()
        results.append([p.grad.clone() for p in model.parameters()])
    for plain, again in zip(*results, strict=True):
        torch.testing.assert_close(plain, again)


def test_layers__follow_the_depth_and_the_classifiers_are_last() -> None:
    model = build()
    ids = layer_ids(model)
    assert set(ids) == dict(model.named_parameters()).keys()
    assert ids["pos_embed"] == ids["patch_embed.bn1.weight"] == 0
    assert [ids[f"blocks.{n}.mlp.fc1.weight"] for n in range(3)] == [1, 2, 3]
    assert ids["norm.weight"] == 3
    assert ids["head.weight"] == ids["aux_head.weight"] == 4
    assert model.no_weight_decay() <= ids.keys()


def test_attention__is_recorded() -> None:
    model = build()
    with recorded_attention(model) as maps, torch.no_grad():
        model(images())
    assert {name: tuple(weights.shape) for name, weights in maps.items()} == {
        f"blocks.{n}.attn": (2, 3, 25, 25) for n in range(3)
    }
    torch.testing.assert_close(maps["blocks.1.attn"].sum(-1), torch.ones(2, 3, 25))


def test_copies__compute_the_same() -> None:
    model = build()
    with torch.no_grad():
        expected = model(images(1))
        assert torch.equal(copy.deepcopy(model)(images(1)), expected)
        assert torch.equal(pickle.loads(pickle.dumps(model))(images(1)), expected)


def test_bfloat16__stays_as_close_as_rounding_allows() -> None:
    model = build()
    exact, bound = exact_and_bound(model, images(), torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        require_within(model(images()), exact, bound)
    assert bound.max() < 0.1  # so that a network that has lost its way is seen


def test_compiled__has_no_breaks() -> None:
    model = build(depth=1)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(images()), model(images()))


def test_compiled__dense_step_is_not_compiled_again_for_a_box_given_as_a_tensor() -> None:
    model, counter = build(depth=1), CompileCounter()
    step = torch.compile(
        lambda *given: model.dense_logits(model.forward_features(*given)), backend=counter, fullgraph=True
    )
    with torch.no_grad():
        for box in [(0, 0, 1, 1), (1, 2, 4, 6), (2, 0, 2, 3)]:
            for given, expected in zip(
                step(images(), torch.tensor(box)),
                model.dense_logits(model.forward_features(images(), box)),
                strict=True,
            ):
                torch.testing.assert_close(given, expected)
    assert counter.frame_count == 1


@pytest.mark.slow
def test_exported__computes_the_same() -> None:
    model = build()
    program = torch.export.export(model, (images(),))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(images()), model(images()))
