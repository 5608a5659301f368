"""Pairs, targets and classes against the authors' numbers, arithmetic and plain loops."""

import math

import pytest
import torch

from paucal.losses import (
    class_counts,
    draw_pairs,
    gather_pairs,
    pair_classes,
    pair_targets,
    permuted_pairs,
    sample_pairs,
)
from vectors.drloc_inputs import K, all_pairs, expected, recorded_grid, recorded_pairs

rules = pytest.mark.parametrize("rule", ["mix", "sine"])


@rules
def test_pairs__are_those_of_the_vectors(rule):
    pairs = recorded_pairs(rule)
    assert pairs[:, :, 0].tolist() == expected(rule)["first"]
    assert pairs[:, :, 1].tolist() == expected(rule)["second"]


@rules
@pytest.mark.parametrize(
    ("entry", "target", "scale"),
    [
        ("targets_abs", "absolute", "none"),
        ("targets_abs_over_k", "absolute", "side"),
        ("targets_abs_over_k_minus_1", "absolute", "side_minus_1"),
        ("targets_signed", "signed", "none"),
        ("targets_signed_over_k", "signed", "side"),
        ("targets_shifted_signed", "shifted", "none"),
        ("targets_shifted_signed_over_2k_minus_2", "shifted", "side_minus_1"),
    ],
)
def test_pair_targets__match_the_reference(rule, entry, target, scale):
    targets = pair_targets(recorded_pairs(rule), K, K, target=target, scale=scale)
    torch.testing.assert_close(targets.flatten(), torch.tensor(expected(rule)[entry]["values"]), rtol=1e-6, atol=1e-7)


@rules
@pytest.mark.parametrize(("entry", "classes"), [("ce_class_abs", "absolute"), ("ce_class_signed", "signed")])
def test_pair_classes__match_the_reference(rule, entry, classes):
    assert pair_classes(recorded_pairs(rule), K, K, classes=classes).flatten(0, 1).tolist() == expected(rule)[entry]


@rules
def test_gather_pairs__matches_the_reference(rule):
    gathered = gather_pairs(recorded_grid(rule), recorded_pairs(rule))[:, :, 0].double()
    want = expected(rule)["gathered_first_points"]
    torch.testing.assert_close(gathered.flatten()[:16], torch.tensor(want["first16"]).double(), rtol=1e-6, atol=1e-7)
    got = [gathered.mean().item(), gathered.std(correction=0).item(), gathered.norm().item()]
    assert got == pytest.approx([want["mean"], want["std"], want["l2"]], rel=1e-5)


def test_pair_targets__scale_rows_by_height_and_columns_by_width():
    pairs = torch.tensor([[[[4, 1], [1, 8]]]])
    assert pair_targets(pairs, 5, 10).flatten().tolist() == pytest.approx([3 / 5, 7 / 10])
    assert pair_targets(pairs, 5, 10, target="signed").flatten().tolist() == pytest.approx([3 / 5, -7 / 10])
    assert pair_targets(pairs, 5, 10, scale="side_minus_1").flatten().tolist() == pytest.approx([3 / 4, 7 / 9])
    shifted = pair_targets(pairs, 5, 10, target="shifted", scale="side_minus_1")
    assert shifted.flatten().tolist() == pytest.approx([7 / 8, 2 / 18])


def test_pair_targets__of_a_single_row_are_finite():
    pairs = torch.tensor([[[[0, 3], [0, 1]]]])
    assert pair_targets(pairs, 1, 4, scale="side_minus_1").flatten().tolist() == pytest.approx([0, 2 / 3])


@pytest.mark.parametrize("classes", ["signed", "paper", "absolute"])
def test_pair_classes__use_exactly_the_attainable_classes(classes):
    height, width = 3, 5
    index = pair_classes(all_pairs(height, width), height, width, classes=classes)
    for axis, (side, count) in enumerate(zip((height, width), class_counts(height, width, classes), strict=True)):
        margin = 1 if classes == "paper" else 0
        assert sorted(set(index[..., axis].flatten().tolist())) == list(range(margin, count - margin))
        assert count == {"signed": 2 * side - 1, "paper": 2 * side + 1, "absolute": side}[classes]


@pytest.mark.parametrize("keyword", [{"target": "relative"}, {"scale": "width"}])
def test_pair_targets__refuse_unknown_words(keyword):
    with pytest.raises(ValueError, match=next(iter(keyword.values()))):
        pair_targets(recorded_pairs("mix"), 7, 7, **keyword)


def test_sample_pairs__are_uniform_independent_and_may_coincide():
    pairs = sample_pairs(64, 4000, 3, 5, generator=torch.Generator().manual_seed(0))
    assert pairs.shape == (64, 4000, 2, 2)
    index = (pairs[..., 0] * 5 + pairs[..., 1]).flatten(0, 1)
    joint = (index[:, 0] * 15 + index[:, 1]).bincount(minlength=225).double()
    mean = 64 * 4000 / 225
    assert (joint - mean).square().sum() / mean < 224 + 5 * math.sqrt(2 * 224)  # chi-squared of 225 equal cells
    assert not torch.equal(pairs[0], pairs[1])


def test_sample_pairs__statistics_are_those_of_two_uniform_cells():
    offsets = pair_targets(
        sample_pairs(100, 2000, 7, 7, generator=torch.Generator().manual_seed(1)),
        7,
        7,
        target="signed",
        scale="none",
    )
    assert offsets.abs().mean().item() == pytest.approx((49 - 1) / 21, abs=0.02)  # (k^2 - 1) / 3k
    assert offsets.var().item() == pytest.approx((49 - 1) / 6, rel=0.02)  # (k^2 - 1) / 6
    assert (offsets == 0).double().mean().item() == pytest.approx(1 / 7, abs=0.005)


def test_sample_pairs__leave_the_global_generator_alone():
    before = torch.get_rng_state()
    sample_pairs(2, 8, 7, 7, generator=torch.Generator().manual_seed(0))
    permuted_pairs(2, 7, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(before, torch.get_rng_state())


def test_permuted_pairs__see_every_cell_once_on_either_side():
    pairs = permuted_pairs(3, 2, 5, generator=torch.Generator().manual_seed(0))
    index = pairs[..., 0] * 5 + pairs[..., 1]
    assert index[:, :, 0].tolist() == [list(range(10))] * 3
    assert index[:, :, 1].sort().values.tolist() == [list(range(10))] * 3
    assert len({tuple(row) for row in index[:, :, 1].tolist()}) == 3


@pytest.mark.parametrize("draw", [sample_pairs, None])
def test_drawing__refuses_a_single_cell(draw):
    generator = torch.Generator()
    with pytest.raises(ValueError, match="1 x 1"):
        draw_pairs(2, 8 if draw else None, 1, 1, generator=generator)


def test_sample_pairs__refuses_no_pairs():
    with pytest.raises(ValueError, match="got 0"):
        sample_pairs(2, 0, 7, 7, generator=torch.Generator())


@pytest.mark.parametrize("size", [(7, 9), (9, 7), (1, 4), (7, 7)])
def test_gather_pairs__equals_a_loop_on_any_grid(size):
    grid = torch.rand(3, 5, *size)
    pairs = sample_pairs(3, 40, *size, generator=torch.Generator().manual_seed(0))
    gathered = gather_pairs(grid, pairs)
    for image in range(3):
        for pair in range(40):
            for side in range(2):
                row, column = pairs[image, pair, side].tolist()
                assert torch.equal(gathered[image, pair, side], grid[image, :, row, column])
