"""Features by family, against what the published linear probe concatenates."""

import pytest
import timm
import torch

import paucal.backbones  # noqa: F401 (registers our models)
from backbones.reduced import FAMILIES, RESNET
from paucal.backbones import FeatureBackbone
from paucal.evaluation.protocols.features import POOLED, FeatureKind, FeatureReader, parse_kind, probe_kind
from paucal.types import FeatureRequest, UserError

ESVIT_SWIN = {"embed_dim": 24, "depths": (1, 1, 2, 2), "num_heads": (1, 2, 3, 6), "img_size": 64, "window_size": 2}
ESVIT_CVT = {"embed_dims": (8, 16, 32, 48), "depths": (1, 1, 2, 2), "num_heads": (1, 1, 2, 3)}


def build(name, size=(64, 64), **arguments):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = timm.create_model(name, num_classes=0, **arguments)
        for parameter in model.parameters():  # norms with weights of their own, else a wrong one would pass
            parameter.data += 0.05 * torch.randn_like(parameter)
    return FeatureBackbone(model, size).eval()


def images(size=(64, 64)):
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_last_block__is_the_pooled_feature_where_a_norm_ends_the_model(family):
    backbone = family.build(0)
    plan = backbone.plan
    if plan.norm is None or not plan.blocks:
        assert probe_kind(backbone) == POOLED
        pytest.skip("no final norm before pooling")
    with torch.no_grad():
        pooled, last = FeatureReader(backbone, [POOLED, FeatureKind("blocks", 1)])(family.images())
    if family.name.startswith(("cait", "xcit")):  # their class token is made after the last block
        assert last.shape == pooled.shape
        return
    torch.testing.assert_close(last, pooled, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled, backbone(family.images()).pooled)


def test_vit__gives_class_tokens_of_the_last_blocks_each_through_the_final_norm():
    backbone = build("deit_small_patch16_224", img_size=64, depth=4, embed_dim=48, num_heads=3)
    model, x = backbone.model, images()
    with torch.no_grad():
        found = FeatureReader(backbone, [FeatureKind("blocks", 3)])(x)[0]
        tokens = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(x))))
        expected = []
        for block in model.blocks:
            tokens = block(tokens)
            expected.append(model.norm(tokens)[:, 0])
    torch.testing.assert_close(found, torch.cat(expected[-3:], 1))


@pytest.mark.parametrize(("name", "prefix"), [("deit_small_patch16_224", 1), ("deit_tiny_distilled_patch16_224", 2)])
def test_class_and_mean__is_that_of_the_tokens_that_timm_gives(name, prefix):
    backbone = build(name, (64, 96), img_size=(64, 96), depth=3, embed_dim=48, num_heads=3)
    model, x, normed = backbone.model, images((64, 96)), []
    handles = [block.register_forward_hook(lambda _, __, out: normed.append(model.norm(out))) for block in model.blocks]
    with torch.no_grad():
        tokens = model.forward_features(x)
        for handle in handles:
            handle.remove()
        reader = FeatureReader(backbone, [parse_kind("class+mean"), parse_kind("class+mean:2"), POOLED])
        one, two, pooled = reader(x)
    assert tokens.shape == (2, prefix + 24, 48)

    def both(tokens):
        return torch.cat([tokens[:, 0], tokens[:, prefix:].mean(1)], 1)

    torch.testing.assert_close(one, both(tokens))
    torch.testing.assert_close(two, torch.cat([both(normed[1]), both(normed[2])], 1))
    torch.testing.assert_close(one[:, :48], pooled)
    assert not torch.allclose(one[:, 48:], pooled)


def test_class_and_mean__of_vit_base_has_the_published_width():
    backbone = build("vit_base_patch16_224", depth=1, img_size=64)
    with torch.no_grad():
        assert FeatureReader(backbone, [parse_kind("class+mean")])(images())[0].shape == (2, 1536)


def test_class_and_mean__where_the_class_token_comes_after_the_blocks():
    family = next(one for one in FAMILIES if one.name.startswith("cait"))
    backbone = family.build(0)
    with torch.no_grad():
        found = FeatureReader(backbone, [FeatureKind("class+mean")])(family.images())[0]
        tokens = backbone.model.forward_features(family.images())
        torch.testing.assert_close(found, torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1))
        reader = FeatureReader(backbone, [FeatureKind("class+mean", 2)])
        with pytest.raises(
            UserError, match="needs a class token in each block, but cait_xxs24_224 adds its class token later"
        ):
            reader(family.images())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resnet18", RESNET),
        ("swin_tiny_patch4_window7_224", ESVIT_SWIN),
        ("esvit_vil_tiny", {"embed_dims": (16, 24, 32, 48), "num_heads": (1, 2, 2, 3), "depths": (1, 1, 2, 1)}),
        ("deit_tiny_patch16_224", {"img_size": 64, "global_pool": "avg"}),  # averages its patches
    ],
)
def test_class_and_mean__is_refused_without_a_class_token(name, arguments):
    with pytest.raises(UserError, match=f"classifies by its class token, but {name} does not: use pooled"):
        FeatureReader(build(name, **arguments), [FeatureKind("class+mean")])


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "esvit_swin_tiny_patch4_window7_224"])
def test_swin__means_two_blocks_of_stage_three_unnormed_and_two_of_stage_four_normed(name):
    backbone = build(name, **ESVIT_SWIN)
    model, x = backbone.model, images()
    with torch.no_grad():
        found = FeatureReader(backbone, [FeatureKind("blocks", 4)])(x)[0]
        state, expected = model.patch_embed(x), []
        for number, stage in enumerate(model.layers):
            state = stage.downsample(state)
            for block in stage.blocks:
                state = block(state)
                expected.append((model.norm(state) if number == 3 else state).mean((1, 2)))
    assert found.shape == (2, 2 * 96 + 2 * 192)
    torch.testing.assert_close(found, torch.cat(expected[-4:], 1), rtol=1e-4, atol=1e-5)


def test_cvt_and_vil__have_the_published_widths():
    x = images()
    cvt = build("esvit_cvt_tiny", **ESVIT_CVT)
    with torch.no_grad():
        pooled, four = FeatureReader(cvt, [POOLED, FeatureKind("blocks", 4)])(x)
    assert four.shape == (2, 2 * 32 + 2 * 48)
    torch.testing.assert_close(four[:, -48:], pooled, rtol=1e-4, atol=1e-5)


def test_vil__gives_the_global_token_of_stage_three_and_means_of_stage_four():
    backbone = build("esvit_vil_tiny")
    model, x, kept = backbone.model, images(), {}
    names = backbone.plan.blocks[-4:]
    handles = [
        model.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: kept.update({name: out}))
        for name in names
    ]
    with torch.no_grad():
        found = FeatureReader(backbone, [FeatureKind("blocks", 4)])(x)[0]
    for handle in handles:
        handle.remove()
    outputs = [out[0] if isinstance(out, tuple) else out for out in kept.values()]
    assert found.shape == (2, 2304)
    torch.testing.assert_close(found[:, :384], outputs[0][:, 0])
    torch.testing.assert_close(found[:, 384:768], outputs[1][:, 0])
    torch.testing.assert_close(found[:, -768:], backbone(x).pooled, rtol=1e-4, atol=1e-5)


def test_stages__are_means_of_the_last_ones_and_end_in_the_pooled_feature():
    backbone = build("swin_tiny_patch4_window7_224", **ESVIT_SWIN)
    with torch.no_grad():
        found = FeatureReader(backbone, [FeatureKind("stages", 2)])(images())[0]
        grids = backbone(images(), FeatureRequest("stages")).grids
        torch.testing.assert_close(found, torch.cat([grids[-2].mean((2, 3)), backbone(images()).pooled], 1))


def test_kinds__of_the_published_probe():
    assert str(probe_kind(build("swin_tiny_patch4_window7_224", **ESVIT_SWIN))) == "last 4 blocks"
    assert probe_kind(FAMILIES[0].build(0)).count == 3  # it has no more
    assert probe_kind(build("resnet18")) == POOLED


def test_reader__leaves_no_hooks_behind():
    backbone = build("vit_mini", (16, 16), img_size=16, depth=2)
    before = sum(len(module._forward_hooks) for module in backbone.model.modules())
    reader = FeatureReader(backbone, [FeatureKind("blocks", 2)])
    assert sum(len(module._forward_hooks) for module in backbone.model.modules()) == before + 2
    reader.close()
    assert sum(len(module._forward_hooks) for module in backbone.model.modules()) == before


def test_parse__and_its_words():
    texts = ("pooled", "blocks:4", "stages:1", "class+mean", "class+mean:3")
    kinds = [parse_kind(text) for text in texts]
    assert [(kind.levels, kind.count) for kind in kinds] == [
        ("pooled", 1), ("blocks", 4), ("stages", 1), ("class+mean", 1), ("class+mean", 3),
    ]  # fmt: skip
    assert len({str(kind) for kind in kinds}) == len(kinds)  # what stored features are found by
    assert str(kinds[3]) == "class token and mean of patches of the last block"


@pytest.mark.parametrize(
    "text", ["last", "blocks", "blocks:0", "stages:-1", "blocks:4:2", "class+mean:0", "class", "pooled:2", ""]
)
def test_parse__refuses_what_is_no_kind(text):
    with pytest.raises(UserError, match="expected auto or pooled, or a number of last blocks"):
        parse_kind(text)


def test_reader__refuses_more_blocks_or_stages_than_there_are():
    backbone = build("vit_mini", (16, 16), img_size=16, depth=2)
    with pytest.raises(UserError, match="the last 5 blocks, but only 2 of vit_mini"):
        FeatureReader(backbone, [FeatureKind("blocks", 5)])
    with pytest.raises(UserError, match="the last 9 stages, but only 2 of vit_mini"), torch.no_grad():
        FeatureReader(backbone, [FeatureKind("stages", 9)])(images((16, 16)))
