"""Swin, DeiT, ViT-B and ResNet-50 of DrLoc's and EsViT's programs: their weights give their outputs here."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.weights.start import StartWeights, start_from
from vectors import recorded

SWIN7, SWIN14 = "esvit_swin_tiny_patch4_window7_224", "esvit_swin_tiny_patch4_window14_224"
DRLOC = {
    "drloc_vit_base_16": "drloc_vit_base_patch16_224",
    "drloc_swin_tiny": "swin_tiny_patch4_window7_224",
    "drloc_resnet50": "resnet50",
}


def loaded(record: dict[str, Any], name: str, rule: str, wrapper: str, prefix: str = "") -> nn.Module:
    """Build the model and start it from the original's state dict, of which nothing may be left over."""
    state = {prefix + key: value for key, value in recorded.filled_state(record, rule).items()}
    model = timm.create_model(name, num_classes=record["num_classes"]).eval()
    head = "keep" if record["num_classes"] else "auto"
    report = start_from(model, StartWeights({wrapper: state}, "the original"), head=head)
    assert report.share == 1
    assert not report.unused
    assert not report.fresh
    assert sum(p.numel() for p in model.parameters()) == record["parameters"]
    return model


def outputs(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, and the grid before and after the final norm as (B, cells, C) where there is one."""
    kept: list[Tensor] = []
    handle = None
    if hasattr(model, "norm"):
        handle = model.norm.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    with torch.no_grad():
        features = model.forward_features(images)
        result = model.forward_head(features)
    if handle is None:
        return result, features, features
    handle.remove()
    prefix = getattr(model, "num_prefix_tokens", 0)
    before, after = (x.flatten(1, 2) if x.ndim == 4 else x[:, prefix:] for x in (kept[0], features))
    return result, before, after


def check_esvit(record: str, name: str, rule: str, side: int) -> None:
    data = recorded.load(record)
    model = loaded(data, name, rule, "teacher", "module.")
    run = next(run for run in data["runs"] if run["fill"] == rule and run["input"][2] == side)
    pooled, _, tokens = outputs(model, recorded.images(run))
    recorded.require_outputs(pooled, run, "view_feature")
    recorded.require_grid(tokens, run, "tokens")


def test_esvit_swin__computes_what_the_original_does_on_small_crops() -> None:
    check_esvit("esvit_swin_tiny_w7", SWIN7, "mix", 96)


def test_esvit_deit__computes_what_the_original_does_on_small_crops() -> None:
    check_esvit("esvit_deit_small", "esvit_deit_small_patch16_224", "mix", 96)


@pytest.mark.slow
@pytest.mark.parametrize("side", [224, 96])
@pytest.mark.parametrize("rule", ["mix", "sine"])
@pytest.mark.parametrize(
    ("record", "name"),
    [
        ("esvit_swin_tiny_w7", SWIN7),
        ("esvit_swin_tiny_w14", SWIN14),
        ("esvit_deit_small", "esvit_deit_small_patch16_224"),
    ],
)
def test_esvit__computes_what_the_original_does(record: str, name: str, rule: str, side: int) -> None:
    check_esvit(record, name, rule, side)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mix", "sine"])
@pytest.mark.parametrize("record", DRLOC)
def test_drloc__computes_what_the_original_does(record: str, rule: str) -> None:
    data = recorded.load(record)
    model = loaded(data, DRLOC[record], rule, "model")
    run = next(run for run in data["runs"] if run["fill"] == rule)
    logits, before, after = outputs(model, recorded.images(run))
    recorded.require_outputs(logits, run)
    for name in run["grids"]:
        recorded.require_grid(before if name == "pre_norm" else after, run, name)
