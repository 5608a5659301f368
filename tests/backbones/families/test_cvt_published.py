"""The three flavours of CvT against what the original programs computed, and against their published sizes."""

import pytest
import timm
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families import cvt, cvt_drloc, cvt_esvit
from paucal.backbones.families.common.contract import to_tokens
from paucal.backbones.weights.start import StartWeights, start_from
from vectors import recorded

NAMES = {"cvt13_official": "cvt_13", "drloc_cvt13": "drloc_cvt_13", "esvit_cvt_tiny": "esvit_cvt_tiny"}
SMALL = {"embed_dims": (8, 16, 24), "depths": (1, 1, 2), "num_heads": (1, 2, 3), "num_classes": 3}


def grids_of(model, images):
    """Return the logits and the grids by the names under which they were recorded."""
    kept = {}
    handle = model.norm.register_forward_pre_hook(lambda _, inputs: kept.update(tokens=inputs[0]))
    with torch.no_grad():
        features = model.forward_features(images)
        last = model.forward_intermediates(images, indices=1, intermediates_only=True)[0]
        logits = model.forward_head(features)
    handle.remove()
    pooled = functional.avg_pool2d(last, 3, 2, 1, count_include_pad=False)
    grids = {"pre_norm": last, "final": last, "loss_input": pooled, "class_token": kept["tokens"][:, :1]}
    return logits, {**grids, "tokens": to_tokens(features) if features.ndim == 4 else features}


def require_equal(name, rule, size):
    record = recorded.load(name)
    model = timm.create_model(NAMES[name], num_classes=record["num_classes"]).eval()
    tree = {"model": recorded.filled_state(record, rule)}
    report = start_from(model, StartWeights(tree, name), head="keep" if record["num_classes"] else "auto")
    assert (report.share, report.unused, report.fresh) == (1.0, (), ())
    runs = [run for run in record["runs"] if run["fill"] == rule and run["input"][2] == size]
    assert runs
    for run in runs:
        logits, grids = grids_of(model, recorded.images(run))
        for output in run["outputs"]:
            recorded.require_outputs(logits, run, output)
        for grid in run["grids"]:
            recorded.require_grid(grids[grid], run, grid)


def test_vectors__of_esvit_at_96_pixels_are_reproduced() -> None:
    require_equal("esvit_cvt_tiny", "mix", 96)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mix", "sine"])
@pytest.mark.parametrize(("name", "size"), [*((name, 224) for name in NAMES), ("esvit_cvt_tiny", 96)])
def test_vectors__are_reproduced(name: str, size: int, rule: str) -> None:
    require_equal(name, rule, size)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("cvt_13", {}, 19_997_480),
        ("cvt_21", {}, 31_622_696),
        ("drloc_cvt_13", {}, 19_936_296),
        ("drloc_cvt_13", {"num_classes": 100}, 19_589_796),
        ("drloc_cvt_13", {"num_classes": 10}, 19_555_146),
        ("esvit_cvt_tiny", {}, 30_072_616),
        ("esvit_cvt_tiny", {"rel_pos_bias": True}, 30_084_108),
        ("esvit_cvt_tiny", {"num_classes": 0}, 29_303_616),
        ("esvit_cvt_tiny", {"num_classes": 0, "rel_pos_bias": True}, 29_315_108),
    ],
)
def test_parameters__are_as_many_as_published(name: str, arguments: dict, expected: int) -> None:
    with meta_device():
        model = timm.create_model(name, **arguments)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("cvt_13", 224, 4.566),
        pytest.param("cvt_13", 32, 0.101, marks=pytest.mark.slow),
        pytest.param("cvt_13", 64, 0.351, marks=pytest.mark.slow),
        pytest.param("cvt_13", 96, 0.778, marks=pytest.mark.slow),
        pytest.param("cvt_13", 256, 6.161, marks=pytest.mark.slow),
        pytest.param("cvt_21", 224, 7.178, marks=pytest.mark.slow),
        ("drloc_cvt_13", 224, 4.543682816),
        pytest.param("esvit_cvt_tiny", 224, 4.285, marks=pytest.mark.slow),
        ("esvit_cvt_tiny", 96, 0.806),
    ],
)
def test_macs__are_as_many_as_published(name: str, size: int, expected: float) -> None:
    with meta_device():
        model, images = timm.create_model(name).eval(), torch.zeros(1, 3, size, size)
    with FlopCounterMode(display=False) as counter:
        model(images)
    assert counter.get_total_flops() / 2e9 == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(
    ("module", "name", "key", "ours"),
    [
        (cvt, "cvt_13", "stage2.blocks.7.attn.conv_proj_k.bn.weight", "stages.2.blocks.7.attn.conv_proj_k.bn.weight"),
        (cvt, "cvt_13", "stage0.patch_embed.norm.bias", "stages.0.embed.norm.bias"),
        (cvt_drloc, "drloc_cvt_13", "layers.1.2.layers.0.0.fn.to_out.0.bias", "stages.1.blocks.0.attn.proj.bias"),
        (cvt_drloc, "drloc_cvt_13", "drloc.0.layers.0.weight", "drloc.0.layers.0.weight"),
        (
            cvt_esvit,
            "esvit_cvt_tiny",
            "module.stage3.1.layers.1.0.fn.rel_pos_bias_table",
            "stages.3.blocks.1.attn.relative_position_bias_table",
        ),
    ],
)
def test_filter__renames_published_tensors(module, name: str, key: str, ours: str) -> None:
    first = next(iter(recorded.load({v: k for k, v in NAMES.items()}[name])["state_dict"]))[0]
    prefix = "module." if key.startswith("module.") else ""
    value = torch.zeros(2)
    assert ours in module.checkpoint_filter_fn({prefix + first: torch.zeros(1), key: value}, torch.nn.Identity())


@pytest.mark.parametrize("module", [cvt, cvt_drloc, cvt_esvit])
@pytest.mark.parametrize("name", [*NAMES.values(), "resnet18", "swin_tiny_patch4_window7_224", "vit_mini"])
def test_filter__leaves_our_own_names_and_foreign_ones_alone(module, name: str) -> None:
    with meta_device():
        state = timm.create_model(name).state_dict()
    filtered = module.checkpoint_filter_fn(state, torch.nn.Identity())
    if name == "swin_tiny_patch4_window7_224":  # its `layers.0` are stages as well
        return
    assert filtered.keys() == state.keys()
    assert all(filtered[key] is state[key] for key in state)


def test_filter__leaves_tables_of_offsets_out_which_are_computed() -> None:
    state = {"stage0.0.proj.weight": torch.zeros(1), "stage0.1.layers.0.0.fn.rel_pos_idx": torch.zeros(49, 49)}
    assert list(cvt_esvit.checkpoint_filter_fn(state, torch.nn.Identity())) == ["stages.0.embed.proj.weight"]


def test_start__says_that_the_localization_head_is_left_out() -> None:
    model = timm.create_model("drloc_cvt_13", **SMALL)
    state = {**model.state_dict(), "drloc.0.layers.0.weight": torch.zeros(4, 4)}
    report = start_from(model, StartWeights({"model": state}, "a file"), head="keep")
    assert report.share == 1
    assert (*report.unused, *report.method) == ("drloc.0.layers.0.weight",)
