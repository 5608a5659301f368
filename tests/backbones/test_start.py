"""Weights of one model loaded into another: what arrives, what is changed on the way, and what is refused."""

import re
import warnings

import pytest
import timm
import torch
from timm.layers.pos_embed import resample_abs_pos_embed

import paucal.backbones
from paucal.backbones import BackboneSpec
from paucal.backbones.weights.adapt import fit_to_model, position_grid
from paucal.backbones.weights.start import StartWeights, start_from
from paucal.types import UserError

assert paucal.backbones
VIT = {"embed_dim": 32, "depth": 2, "num_heads": 2}
SWIN = {"embed_dim": 24, "depths": (2, 2), "num_heads": (1, 2)}


def vit(seed: int = 0, **arguments):
    torch.manual_seed(seed)
    return timm.create_model("vit_tiny_patch16_224", **{**VIT, **arguments})


def swin(seed: int = 0, **arguments):
    torch.manual_seed(seed)
    model = timm.create_model("swin_tiny_patch4_window7_224", **{**SWIN, **arguments})
    for name, parameter in model.named_parameters():
        if name.endswith("bias_table"):  # fresh ones are nearly zero
            torch.nn.init.normal_(parameter)
    return model


def start(model, tree, **options):
    known = {name: options.pop(name) for name in ("model_name", "names", "grid") if name in options}
    weights = StartWeights(tree, "here", known.get("model_name"), known.get("names"), known.get("grid"))
    return start_from(model, weights, **options)


def loaded_by_timm(name, state, **arguments):
    """What timm's own pipeline makes of weights handed to it as if published."""
    overlay = {"state_dict": dict(state), "num_classes": 1000}
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm's table resampling indexes in an outdated way
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **arguments)


def assert_same(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


def test_vit__positions_patches_and_channels_equal_timms_own():
    source, arguments = vit(), {**VIT, "img_size": 32, "patch_size": 4, "in_chans": 1, "num_classes": 5}
    model = vit(5, img_size=32, patch_size=4, in_chans=1, num_classes=5)
    fresh_head = model.head.weight.clone()
    report = start(model, source.state_dict())
    assert_same(model, loaded_by_timm("vit_tiny_patch16_224", source.state_dict(), **arguments))
    expected = resample_abs_pos_embed(source.pos_embed, [8, 8], [14, 14])
    assert torch.equal(model.pos_embed, expected)
    assert torch.equal(model.head.weight, fresh_head)
    assert report.share == 1
    assert report.adapted == {
        "pos_embed": "resampled from 197 to 65 positions",
        "patch_embed.proj.weight": "kernel resampled from 16x16 to 4x4 and input channels from 3 to 1",
    }
    assert report.classifier == "fresh, since the loaded weights have 1000 classes and this run 5"


def test_swin__tables_of_another_window_equal_timms_own():
    source, arguments = swin(), {**SWIN, "img_size": 32, "window_size": 4, "num_classes": 5}
    model = swin(1, img_size=32, window_size=4, num_classes=5)
    report = start(model, source.state_dict())
    theirs = loaded_by_timm("swin_tiny_patch4_window7_224", source.state_dict(), **arguments)
    for name, value in theirs.state_dict().items():
        if not name.startswith("head"):
            assert torch.equal(model.state_dict()[name], value), name
    assert set(report.adapted.values()) == {"resampled from 169 to 49 offsets"}
    assert len(report.adapted) == 4


def test_swin__a_table_keeps_what_an_offset_means():
    # A bias equal to the vertical offset itself must stay so: -3 .. 3 rows for a window of 4.
    source, model = swin(), swin(1, img_size=32, window_size=4)
    rows = torch.arange(-6.0, 7).repeat_interleave(13)
    with torch.no_grad():
        source.layers[0].blocks[0].attn.relative_position_bias_table.copy_(rows[:, None])
    start(model, source.state_dict())
    table = model.layers[0].blocks[0].attn.relative_position_bias_table.reshape(7, 7)
    torch.testing.assert_close(table, torch.arange(-3.0, 4)[:, None].expand(7, 7), atol=0.05, rtol=0)


def test_swin__names_and_buffers_of_the_original_program():
    source, model = swin(), swin(1)
    state = {}
    for name, value in source.state_dict().items():
        # There a stage ends with the merging of patches; in timm it begins with it.
        name = re.sub(r"layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", name)
        state[name.replace("head.fc.", "head.")] = value
    state |= {"layers.0.blocks.1.attn_mask": torch.zeros(64, 49, 49)}
    state |= {"layers.0.blocks.0.attn.relative_position_index": torch.zeros(49, 49, dtype=torch.long)}
    report = start(model, {"model": state, "epoch": 3})
    assert_same(model, source)
    assert (report.share, report.part, report.unused, report.fresh) == (1, "model", (), ())


def test_resnet__channels_are_summed_and_statistics_arrive():
    torch.manual_seed(0)
    source = timm.create_model("test_resnet", num_classes=3)
    source.train()(torch.randn(4, 3, 32, 32))  # moves the running statistics
    model = timm.create_model("test_resnet", num_classes=3, in_chans=1)
    report = start(model, source.state_dict())
    first = source.pretrained_cfg["first_conv"]
    weight = source.get_submodule(first).weight
    torch.testing.assert_close(model.get_submodule(first).weight, weight.sum(1, keepdim=True))
    assert report.adapted == {f"{first}.weight": "input channels from 3 to 1"}
    assert torch.equal(model.bn1.running_mean, source.bn1.running_mean)
    assert model.bn1.running_mean.abs().max() > 0
    back = timm.create_model("test_resnet", num_classes=3)
    start(back, model.state_dict())
    torch.testing.assert_close(back.get_submodule(first).weight, (weight.sum(1, keepdim=True) / 3).repeat(1, 3, 1, 1))


def test_positions__of_a_known_oblong_grid_keep_rows_and_columns():
    wide = vit(img_size=(32, 64), patch_size=8)  # 4x8 cells
    tall = vit(1, img_size=(64, 32), patch_size=8)  # 8x4 cells: as many, so that the shapes agree
    assert wide.pos_embed.shape == tall.pos_embed.shape
    rows = torch.linspace(0, 1, 4)[:, None].expand(4, 8).reshape(1, 32, 1)
    with torch.no_grad():
        wide.pos_embed[:, 1:] = rows
    start(tall, wide.state_dict(), grid=position_grid(wide))
    cells = tall.pos_embed[0, 1:, 0].reshape(8, 4)
    torch.testing.assert_close(cells, cells[:, :1].expand(8, 4))
    assert (cells[1:, 0] > cells[:-1, 0]).all()
    assert torch.equal(tall.pos_embed[:, 0], wide.pos_embed[:, 0])


@pytest.mark.parametrize("name", ["cait_xxs24_224", "volo_d1_224", "pit_ti_224"])
def test_positions__of_families_without_a_conversion_in_timm(name):
    # A field that is 1 everywhere stays 1, whatever the layout; a copy of another size would not fit.
    source = timm.create_model(name, num_classes=0)
    model = timm.create_model(name, num_classes=0, img_size=96)
    fitted = fit_to_model(model, source.state_dict() | {"pos_embed": torch.ones_like(source.pos_embed)})
    assert fitted.state["pos_embed"].shape == model.pos_embed.shape
    torch.testing.assert_close(fitted.state["pos_embed"], torch.ones_like(model.pos_embed))
    assert not fitted.mismatched
    assert not fitted.unused


def test_positions__that_are_no_map_are_left_and_told():
    source = timm.create_model("nest_tiny", num_classes=0, img_size=224)
    model = timm.create_model("nest_tiny", num_classes=0, img_size=96)
    report = start(model, source.state_dict())
    assert set(report.fresh) == {f"levels.{n}.pos_embed" for n in range(3)}
    assert "not loaded, since the shape differs" in str(report)
    assert report.share < 1


def wrapped(state, *path, prefix=""):
    tree = {prefix + name: value for name, value in state.items()}
    for name in reversed(path):
        tree = {name: tree}
    return tree


@pytest.mark.parametrize(
    ("path", "prefix", "part"),
    [
        ((), "", ""),
        (("state_dict",), "module.", "state_dict, 'module.'"),
        (("model",), "", "model"),
        (("state_dict",), "objective.backbone.model.", "state_dict, 'objective.backbone.model.'"),
        ((), "_orig_mod.module.backbone.", "'_orig_mod.module.backbone.'"),
    ],
)
def test_wrappers__are_found_without_a_list_of_them(path, prefix, part):
    source, model = vit(), vit(1)
    report = start(model, wrapped(source.state_dict(), *path, prefix=prefix) | {"epoch_tensor": torch.zeros(1)})
    assert_same(model, source)
    assert report.part == part


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (("teacher",), ("student",)),
        (("state_dict_ema",), ("state_dict",)),
        (("callbacks", "MovingAverage", "average"), ("state_dict",)),
    ],
)
def test_wrappers__of_two_networks_the_averaged_one_is_taken(better, worse):
    good, bad, model = vit(), vit(1), vit(2)
    tree = {**wrapped(bad.state_dict(), *worse, prefix="module."), **wrapped(good.state_dict(), *better)}
    assert start(model, tree).part == ".".join(better)
    assert_same(model, good)


def test_share__counts_the_elements_below_the_classifier():
    source, model = vit(depth=2, num_classes=1000), vit(1, depth=3, num_classes=1000)
    before = model.state_dict()["blocks.2.norm1.weight"].clone()
    report = start(model, source.state_dict() | {"extra.weight": torch.zeros(2)})
    sizes = {name: p.numel() for name, p in model.named_parameters() if not name.startswith("head.")}
    block = sum(size for name, size in sizes.items() if name.startswith("blocks.2."))
    assert report.share == pytest.approx(1 - block / sum(sizes.values()))
    assert set(report.fresh) == {name for name in sizes if name.startswith("blocks.2.")}
    assert report.unused == ("extra.weight",)
    assert torch.equal(model.state_dict()["blocks.2.norm1.weight"], before)
    assert f"{int(report.share * 1000) / 10} % of the parameters below the classifier" in report.lines()[0]
    assert "not loaded, since they are not in the file: blocks.2." in str(report)
    assert "in the file, but not in the model: extra.weight" in str(report)


CLASSES = ("ant", "bee", "cat", "dog")


@pytest.mark.parametrize(
    ("ours", "rows", "verdict"),
    [
        (("cat", "ant"), [2, 0], "kept, 2 of 4 classes found by name"),
        (("dog", "cat", "bee", "ant"), [3, 2, 1, 0], "kept, 4 of 4 classes found by name"),
        (("cat", "elk"), None, "fresh, since the loaded weights have no class elk"),
        (("a", "b", "c", "d"), None, "fresh, since the loaded weights have no class a, b, c, d"),
    ],
)
def test_classifier__is_kept_by_the_names_of_the_classes(ours, rows, verdict):
    source, model = vit(num_classes=4), vit(1, num_classes=len(ours))
    fresh = model.head.weight.clone()
    report = start(model, source.state_dict(), names=CLASSES, classes=ours)
    assert report.classifier == verdict
    expected = fresh if rows is None else source.head.weight[rows]
    assert torch.equal(model.head.weight, expected)
    assert ("head.weight" in report.loaded) == (rows is not None)
    assert not [name for name in (*report.fresh, *report.unused) if name.startswith("head")]


def test_classifier__without_names_goes_by_the_number():
    source = vit(num_classes=4)
    kept, asked, other = vit(1, num_classes=4), vit(1, num_classes=4), vit(1, num_classes=3)
    assert start(kept, source.state_dict(), classes=CLASSES).classifier.startswith("kept")
    assert torch.equal(kept.head.weight, source.head.weight)
    assert start(asked, source.state_dict(), classes=CLASSES, head="fresh").classifier == "fresh, as requested"
    assert not torch.equal(asked.head.weight, source.head.weight)
    with pytest.raises(UserError, match=r"--init-head keep: .* the loaded weights have 4 classes and this run 3"):
        start(other, source.state_dict(), head="keep")
    headless = vit(num_classes=0)
    assert start(other, headless.state_dict()).classifier == "fresh, since the loaded weights have none"
    assert start(headless, source.state_dict()).classifier == "none"


def test_other_architecture__is_refused_by_name_by_shape_or_by_kind():
    model = vit()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    resnet = timm.create_model("test_resnet").state_dict()
    with pytest.raises(
        UserError,
        match=r"here has only 0 of the 32 tensors .*'conv1.0.weight', but the model's have names such as 'cls_token'",
    ):
        start(model, resnet)
    with pytest.raises(UserError, match=r"the weights belong to test_resnet, so choose --model test_resnet\.$"):
        start(model, resnet, model_name="test_resnet")
    with pytest.raises(UserError, match=r"for example, 'cls_token' is 1x1x48 in the file and 1x1x32 in the model"):
        start(model, vit(embed_dim=48).state_dict())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_values_that_are_no_numbers__are_refused():
    state = vit().state_dict()
    state["blocks.1.attn.qkv.weight"][3, 4] = float("nan")
    with pytest.raises(UserError, match=r"NaN or infinite values in 'blocks.1.attn.qkv.weight'"):
        start(vit(1), state)


def test_whole_numbers__are_no_weights():
    state = vit().state_dict() | {"norm.weight": torch.ones(32, dtype=torch.long)}
    assert start(vit(1), state).fresh == ("norm.weight",)


def test_spec__of_a_sized_model_takes_weights_of_another_size():
    source = BackboneSpec("vit_mini", 10, image_size=(32, 32), arguments={"depth": 1}).build().model
    model = BackboneSpec("vit_mini", 10, image_size=(16, 16), arguments={"depth": 1}).build().model
    report = start(model, source.state_dict())
    assert torch.equal(model.pos_embed, resample_abs_pos_embed(source.pos_embed, [4, 4], num_prefix_tokens=0))
    assert report.share == 1
