"""Sizes of detectors and segmenters: by hand, and as they are published."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones import BackboneSpec
from paucal.studies.registry import find_study
from paucal.transfer.cost import PartCost, detector_cost, segmenter_cost, total
from paucal.transfer.detection.options import DetectorOptions
from paucal.verbs.studying.counting import counted_value

SMALL = BackboneSpec("resnet18", 0, image_size=(256, 384))


def conv(before: int, after: int, side: int, cells: int, bias: bool = False) -> PartCost:
    weights = before * after * side * side
    return PartCost(weights + (after if bias else 0), weights * cells)


def counted(module: nn.Module, images: torch.Tensor) -> PartCost:
    with FlopCounterMode(display=False) as counter:
        module(images)
    return PartCost(sum(p.numel() for p in module.parameters()), counter.get_total_flops() // 2)


def test_detector__is_counted_as_by_hand():
    options = DetectorOptions(channels=32, head_dim=16)
    parts = detector_cost(SMALL, 3, options, regions=10)
    cells = [64 * 96, 32 * 48, 16 * 24, 8 * 12]
    pyramid = [conv(n, 32, 1, c) for n, c in zip((64, 128, 256, 512), cells, strict=True)]
    pyramid += [conv(32, 32, 3, c) for c in cells]
    norms = 2 * 32 * len(pyramid)
    assert parts["pyramid"] == PartCost(
        sum(one.parameters for one in pyramid) + norms, sum(one.macs for one in pyramid)
    )
    seen = sum(cells) + 4 * 6  # the map of stride 64
    shared, three = conv(32, 32, 3, seen, bias=True), conv(32, 3 + 12, 1, seen, bias=True)
    assert parts["proposals"] == PartCost(shared.parameters + three.parameters, shared.macs + three.macs)
    layers = 32 * 49 * 16 + 16 * 16 + 16 * (4 + 16)
    assert parts["heads"] == PartCost(layers + 16 + 16 + 4 + 16, 10 * layers)
    assert total(parts).macs == sum(one.macs for one in parts.values())


@pytest.mark.parametrize("cascade", [False, True])
def test_masks__are_counted_apart_for_a_hundred_objects(cascade):
    options = DetectorOptions(channels=32, head_dim=16, cascade=cascade)
    boxes, whole = (detector_cost(SMALL, 3, replace(options, masks=masks), 10) for masks in (False, True))
    layers = [conv(32, 32, 3, 14 * 14, bias=True)] * 4 + [conv(32, 32, 2, 14 * 14, bias=True)]
    layers += [conv(32, 4, 1, 28 * 28, bias=True)]
    each, times = PartCost(sum(one.parameters for one in layers), sum(one.macs for one in layers)), 1 + 2 * cascade
    assert whole.pop("masks") == PartCost(times * each.parameters, times * 100 * each.macs)
    assert whole == boxes


def test_cascade__counts_each_of_its_heads():
    options = DetectorOptions(channels=32, head_dim=16, cascade=True)
    layers = 32 * 49 * 16 + 16 * 16 + 16 * (4 + 4)
    assert detector_cost(SMALL, 3, options, 10)["heads"] == PartCost(3 * (layers + 16 + 16 + 4 + 4), 30 * layers)


def test_segmenter__counts_the_auxiliary_head_among_parameters_alone():
    parts = segmenter_cost(SMALL, 5, width=8, auxiliary=6)
    assert parts["auxiliary"] == PartCost(256 * 6 * 9 + 2 * 6 + 6 * 5 + 5, 0)
    assert "auxiliary" not in segmenter_cost(SMALL, 5, width=8, auxiliary=None)
    classifier = 8 * 5 * 64 * 96
    more = segmenter_cost(SMALL, 10, width=8)["head"].macs - parts["head"].macs
    assert more == classifier


def test_counting__draws_nothing():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    segmenter_cost(SMALL, 5, width=8)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_published__is_reached_but_for_the_larger_heads_of_the_published_cascade():
    """Every published number, to its last digit."""
    study = find_study("network-detectors")
    with torch.device("meta"):
        layers = [m for _ in range(4) for m in (nn.Conv2d(256, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256))]
        head = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 49, 1024), nn.Linear(1024, 81 + 4 * 80))
        large = counted(head, torch.zeros(1000, 256, 7, 7))
        small = PartCost(13_982_805, 13_980_000_000)  # two layers of 1,024, 81 classes, one box
    for row in study.rows:
        params, macs = (counted_value(study, row, column) for column in study.columns)
        assert params is not None
        assert macs is not None
        if row.name.startswith("Cascade"):
            params += 3 * (large.parameters - small.parameters) / 1e6
            macs += 3 * (large.macs - small.macs) / 1e9
        assert (round(params), round(macs)) == row.values, row.name


@pytest.mark.slow
def test_published__segmenters_are_ours_but_for_the_maps_of_a_single_grid():
    study = find_study("network-segmenters")
    found = {row.name: [counted_value(study, row, column) for column in study.columns] for row in study.rows}
    assert found["UperNet, Swin-T"] == [pytest.approx(59.943, abs=1e-3), pytest.approx(944.39, abs=0.01)]
    assert found["UperNet, Swin-S"] == [pytest.approx(81.261, abs=1e-3), pytest.approx(1037.42, abs=0.01)]
    assert found["UperNet, LV-ViT-S"][0] == pytest.approx(35.271, abs=1e-3)
    assert found["UperNet, LV-ViT-M"][0] == pytest.approx(66.094, abs=1e-3)
    published = {row.name: row.values for row in study.rows}
    assert [published["UperNet, Swin-T"], published["UperNet, Swin-S"]] == [(60, 945), (81, 1038)]
