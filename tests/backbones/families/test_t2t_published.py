"""T2T-ViT: the published sizes, and what the original programs computed."""

import pytest
import timm
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.empty_models import meta_device
from paucal.backbones.weights.start import StartWeights, start_from
from vectors import recorded

# Parameters: all, trainable; 10^9 multiplications at 224 pixels. Those of depth 24 and of t_19 follow from the others.
SIZES = {
    "t2t_vit_7": (4_310_222, 4_255_694, 1.147),
    "t2t_vit_10": (5_889_230, 5_834_702, 1.516),
    "t2t_vit_12": (6_941_902, 6_887_374, 1.763),
    "t2t_vit_14": (21_545_550, 21_465_806, 4.784),
    "t2t_vit_19": (39_177_422, 39_085_070, 8.480),
    "t2t_vit_24": (64_105_934, 64_000_974, 13.662),
    "t2t_vit_t_14": (21_541_070, 21_465_422, 6.089),
    "t2t_vit_t_19": (39_172_942, 39_084_686, 9.785),
    "t2t_vit_t_24": (64_101_454, 64_000_590, 14.967),
}


def parameters(name):
    """Count by hand, from the sizes of the layers, what the sheet does not list."""
    with meta_device():
        model = timm.create_model(name)
    width, depth, hidden = model.embed_dim, len(model.blocks), model.blocks[0].mlp.fc1.out_features
    block = 4 * width**2 + 2 * width * hidden + hidden + 6 * width
    token_layers = 165_478 if "_t_" in name else 169_958
    return token_layers + 577 * width + 198 * width + depth * block + 2 * width + 1000 * (width + 1)


FAST = ("t2t_vit_7", "t2t_vit_14", "t2t_vit_t_14")


@pytest.mark.parametrize("name", [one if one in FAST else pytest.param(one, marks=pytest.mark.slow) for one in SIZES])
def test_variants__have_the_published_parameters_and_multiplications(name) -> None:
    every, trainable, multiplications = SIZES[name]
    with meta_device():
        model = timm.create_model(name).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224))
    assert sum(p.numel() for p in model.parameters()) == every == parameters(name)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trainable
    assert counter.get_total_flops() / 2e9 == pytest.approx(multiplications, rel=5e-3)
    if name == "t2t_vit_14":
        assert counter.get_total_flops() == 9_566_937_088


VECTORS = [("t2t_vit_14", "t2t_vit_14"), ("t2t_vit_t_14", "t2t_vit_t_14"), ("drloc_t2t_vit_14", "t2t_vit_14")]


def require_recorded(record_name, model_name, rule) -> None:
    record = recorded.load(record_name)
    given = next(one for one in record["runs"] if one["fill"] == rule)
    model = timm.create_model(model_name, num_classes=record["num_classes"]).eval()
    state = {"state_dict_ema": {f"module.{k}": v for k, v in recorded.filled_state(record, rule).items()}}
    report = start_from(model, StartWeights(state, "the recorded model"), head="keep")
    assert (report.share, report.unused, report.fresh, report.adapted) == (1.0, (), (), {})
    with torch.no_grad():
        tokens, blocks = model.forward_intermediates(recorded.images(given), indices=1, output_fmt="NLC")
        recorded.require_outputs(model.forward_head(tokens), given)
    cells = tokens[:, 1:]
    grid = cells.transpose(1, 2).reshape(2, -1, 14, 14)
    grids = {
        "pre_norm": blocks[0],
        "post_norm": cells,
        "loss_input": functional.avg_pool2d(grid, 3, 2, 1, count_include_pad=False),
    }
    for name in given["grids"]:
        recorded.require_grid(grids[name], given, name)


def test_recorded__t2t_vit_14_computes_what_the_original_did() -> None:
    require_recorded("t2t_vit_14", "t2t_vit_14", "mix")


@pytest.mark.slow
@pytest.mark.parametrize(("record", "name"), VECTORS)
@pytest.mark.parametrize("rule", ["mix", "sine"])
def test_recorded__all_compute_what_the_originals_did(record, name, rule) -> None:
    require_recorded(record, name, rule)
