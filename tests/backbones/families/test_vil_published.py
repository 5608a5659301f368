"""What the published programs computed with EsViT's ViL-T, and how their state dicts are read."""

import pytest
import timm
import torch

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.families.vil import checkpoint_filter_fn
from paucal.backbones.families.vil_attention import FullAttention
from paucal.backbones.weights.start import StartWeights, start_from
from vectors import recorded

RECORD = recorded.load("esvit_vil_tiny")
RUNS = [(run["fill"], run["input"][2]) for run in RECORD["runs"]]
SMALL = {
    "img_size": 64,
    "embed_dims": (8, 16, 24, 32),
    "depths": (1, 2, 2, 1),
    "num_heads": (1, 2, 2, 4),
    "window_size": 3,
    "num_classes": 5,
}


def loaded(rule, **arguments):
    model = timm.create_model("esvit_vil_tiny", num_classes=0, **arguments).eval()
    report = start_from(
        model, StartWeights({"model": recorded.filled_state(RECORD, rule)}, "the original"), head="keep"
    )
    assert report.share == 1
    assert report.unused == ()
    assert report.fresh == ()
    return model


def require_recorded(model, rule, side):
    run = next(run for run in RECORD["runs"] if run["fill"] == rule and run["input"][2] == side)
    with torch.no_grad():
        features = model.forward_features(recorded.images(run))
    recorded.require_outputs(model.forward_head(features, pre_logits=True), run, "view_feature")
    recorded.require_grid(features.flatten(2).transpose(1, 2), run, "tokens")


def test_recorded__features_of_96_pixels_are_met_with_the_published_resizing_alone():
    model = loaded("mix", bias_resize="picture")
    require_recorded(model, "mix", 96)
    for module in model.modules():
        if isinstance(module, FullAttention):
            module.bias_resize = "lookup"
    with pytest.raises(AssertionError, match="off in a value"):
        require_recorded(model, "mix", 96)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "side"), RUNS)
def test_recorded__features_are_met(rule, side):
    require_recorded(loaded(rule, bias_resize="picture"), rule, side)


@pytest.mark.slow
def test_recorded__features_of_224_pixels_need_no_resizing():
    require_recorded(loaded("mix"), "mix", 224)


def published(model):
    """Return a model's state dict under the names of the published program."""
    state = {}
    for name, value in model.state_dict().items():
        parts = name.split(".")
        if parts[0] != "stages":
            state[name] = value
            continue
        start, rest = f"layer{int(parts[1]) + 1}", ".".join(parts[3:])
        if parts[2] == "embed":
            state[f"{start}.0.{rest.replace('norm.', 'norm_embed.')}"] = value
            continue
        block, rest = int(parts[3]), ".".join(parts[4:])
        second = rest.startswith(("norm2", "mlp"))
        rest = rest.replace("norm1", "norm").replace("norm2", "norm")
        prefix = f"{start}.{1 + 2 * block + second}."
        if rest.startswith("attn.qkv.") and parts[1] in "01":
            kind, width = parts[-1], value.shape[0] // 3
            pairs = {f"attn.query.{kind}": value[:width], f"attn.kv.{kind}": value[width:]}
            if f"stages.{parts[1]}.blocks.{block}.attn.query_global.weight" not in model.state_dict():
                pairs |= {key.replace(f".{kind}", f"_global.{kind}"): one for key, one in pairs.items()}
        else:
            pairs = {rest: value}
            if rest.startswith("attn.proj.") and parts[1] in "01":
                pairs.setdefault(rest.replace("proj.", "proj_global."), value)
        for key, one in pairs.items():
            state.setdefault(prefix + key, one)
        if "relative_position_bias_table" in rest:
            state[f"{prefix}attn.relative_position_index"] = torch.zeros(3, 3, dtype=torch.int64)
    return state


@pytest.mark.parametrize("changes", [{}, {"share_projections": False}, {"positions": "absolute"}])
def test_names__of_the_published_program_are_read(changes):
    torch.manual_seed(3)
    source = timm.create_model("vil_tiny", **SMALL, **changes)
    state = published(source)
    if changes.get("share_projections") is False:  # the copies of the test would hide the source's own
        own = source.state_dict()
        for stage in (0, 1):
            for block in range(SMALL["depths"][stage]):
                for kind in ("weight", "bias"):
                    key = f"layer{stage + 1}.{1 + 2 * block}.attn.proj_global.{kind}"
                    state[key] = own[f"stages.{stage}.blocks.{block}.attn.proj_global.{kind}"]
    if "positions" in changes:
        state["layer4.0.cls_pos_embed"] = torch.zeros(1, 0, 32)  # of no global tokens
    assert "layer1.1.attn.query.weight" in state
    model = timm.create_model("vil_tiny", **SMALL, **changes)
    report = start_from(model, StartWeights({"model": state}, "the original"), head="keep")
    assert (report.share, report.unused, report.fresh) == (1, (), ())
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_tables__are_resized_for_another_image_size():
    source = timm.create_model("vil_tiny", **SMALL)
    model = timm.create_model("vil_tiny", **{**SMALL, "img_size": 128})
    report = start_from(model, StartWeights({"model": published(source)}, "the original"), head="keep")
    assert report.share == 1
    assert any("offsets" in what for what in report.adapted.values())
    absolute = {**SMALL, "positions": "absolute"}
    source = timm.create_model("vil_tiny", **absolute)
    model = timm.create_model("vil_tiny", **{**absolute, "img_size": (128, 64)})
    assert start_from(model, StartWeights({"model": source.state_dict()}, "our own"), head="keep").share == 1
    assert torch.equal(model.stages[0].embed.y_pos_embed, source.stages[0].embed.y_pos_embed)
    assert model.stages[0].embed.x_pos_embed.shape == (1, 32, 4)


def test_filter__leaves_own_and_foreign_names_alone():
    model = timm.create_model("vil_tiny", **SMALL)
    own = model.state_dict()
    assert {name: id(value) for name, value in checkpoint_filter_fn(own, model).items()} == {
        name: id(value) for name, value in own.items()
    }
    foreign = {"layer1.0.conv1.weight": torch.zeros(2), "fc.bias": torch.zeros(3), "x.attn.query.weight": torch.ones(1)}
    assert len(checkpoint_filter_fn(foreign, model)) == 3
