"""The dense relative localization loss against the authors' numbers and known values."""

import pytest
import torch

from paucal.losses import (
    DrLocReading,
    class_counts,
    drloc_chance_level,
    drloc_loss,
    gather_pairs,
    offset_cross_entropy,
    offset_l1,
    offset_variance_regression,
    pair_classes,
    pair_targets,
    pool_grid,
)
from vectors.drloc_inputs import TOLERANCE, K, all_pairs, expected, recorded_pairs
from vectors.fill import tensor

rules = pytest.mark.parametrize("rule", ["mix", "sine"])


def constant_head(*values):
    def head(grid, pairs):
        rows, columns = (torch.tensor(v).float().expand(*pairs.shape[:2], -1) for v in values)
        return rows, columns

    return head


def zero(grid, pairs):
    zeros = grid.new_zeros(*pairs.shape[:2], 1)
    return zeros, zeros


@rules
@pytest.mark.parametrize(
    ("entry", "target", "scale"),
    [
        ("raw_abs", "absolute", "none"),
        ("abs_over_k", "absolute", "side"),
        ("abs_over_k_minus_1", "absolute", "side_minus_1"),
        ("shifted_signed", "shifted", "none"),
        ("signed", "signed", "none"),
        ("signed_over_k", "signed", "side"),
    ],
)
def test_offset_l1__matches_the_reference(rule, entry, target, scale):
    prediction = torch.from_numpy(tensor("drloc.pred_l1", (16, 2), rule=rule)).unflatten(0, (2, 8))
    loss = offset_l1(prediction, pair_targets(recorded_pairs(rule), K, K, target=target, scale=scale))
    assert loss.item() == pytest.approx(expected(rule)["formula_predictions_l1"][entry], rel=TOLERANCE[rule])


@rules
@pytest.mark.parametrize("kind", ["ce", "cbr"])
@pytest.mark.parametrize(
    ("count", "classes"), [(7, "absolute"), (13, "signed"), (14, "absolute"), (15, "paper"), (27, "signed")]
)
def test_class_losses__match_the_reference_in_value_and_gradient(rule, kind, count, classes):
    formula = torch.from_numpy(tensor(f"drloc.pred_class{count}", (16, count, 2), 2.0, rule=rule)).requires_grad_()
    index = pair_classes(recorded_pairs(rule), K, K, classes=classes)
    total = torch.zeros(())
    for axis in range(2):
        logits = formula[..., axis].unflatten(0, (2, 8))
        if kind == "ce":
            total = total + offset_cross_entropy(logits, index[..., axis])
        else:
            total = total + offset_variance_regression(logits, index[..., axis], log_variance_factor=0.001)
    total.backward()
    want = expected(rule)["formula_predictions_classes"][str(count)][kind]
    assert total.item() == pytest.approx(want["loss"], rel=TOLERANCE[rule])
    assert formula.grad is not None
    assert formula.grad.double().norm().item() == pytest.approx(want["gradient_l2"], rel=1e-4)


@pytest.mark.parametrize(
    ("reading", "value"),
    [
        (DrLocReading(scale="none"), 2.2857),
        (DrLocReading(), 0.3265),
        (DrLocReading(coordinates="sum"), 0.6531),
        (DrLocReading(scale="side_minus_1"), 0.3810),
        (DrLocReading(mode="signed"), 0.3265),
        (DrLocReading(mode="signed", shifted=True, scale="none"), 6.0),
    ],
)
def test_drloc_loss__of_zero_predictions_over_all_pairs(reading, value):
    assert drloc_loss(torch.rand(1, 4, 7, 7), zero, reading, pairs=all_pairs(7, 7)).item() == pytest.approx(
        value, abs=5e-5
    )


@pytest.mark.parametrize(
    ("reading", "value"),
    [
        (DrLocReading(mode="ce", classes="absolute"), 3.8918),
        (DrLocReading(mode="ce"), 5.1299),
        (DrLocReading(mode="ce", classes="paper"), 5.4161),
        (DrLocReading(mode="reg", log_of="variance"), 1.1481),
        (DrLocReading(mode="reg", log_of="variance", classes="absolute"), 1.6456),
        (DrLocReading(mode="reg", classes="paper"), 0.8601),
    ],
)
def test_drloc_loss__of_uniform_logits_over_all_pairs(reading, value):
    counts = class_counts(7, 7, reading.classes)
    head = constant_head([0.0] * counts[0], [0.0] * counts[1])
    loss = drloc_loss(torch.rand(1, 4, 7, 7), head, reading, pairs=all_pairs(7, 7))
    assert loss.item() == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize(
    ("side", "reading", "value"),
    [
        (7, DrLocReading(scale="none"), 1.3469),
        (7, DrLocReading(), 0.1924),
        (7, DrLocReading(scale="side_minus_1"), 0.2245),
        (7, DrLocReading(mode="signed"), 0.3265),
        (7, DrLocReading(mode="ce", classes="absolute"), 3.6700),
        (7, DrLocReading(mode="ce"), 4.8583),
        (7, DrLocReading(mode="ce", classes="paper"), 4.8583),
        (14, DrLocReading(scale="none"), 2.7245),
        (14, DrLocReading(), 0.1946),
    ],
)
def test_chance_level__known_values(side, reading, value):
    assert drloc_chance_level(side, side, reading) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("mode", ["l1", "signed"])
@pytest.mark.parametrize("coordinates", ["mean", "sum"])
def test_chance_level__is_the_minimum_over_constants(mode, coordinates):
    reading = DrLocReading(mode=mode, coordinates=coordinates)
    pairs, grid = all_pairs(3, 5), torch.rand(1, 2, 3, 5)
    losses = [
        drloc_loss(grid, constant_head([row], [column]), reading, pairs=pairs).item()
        for row in torch.linspace(-1, 1, 31).tolist()
        for column in torch.linspace(-1, 1, 31).tolist()
    ]
    level = drloc_chance_level(3, 5, reading)
    assert level - 1e-6 <= min(losses) <= level + 0.02


@pytest.mark.parametrize("mode", ["ce", "reg"])
@pytest.mark.parametrize("classes", ["absolute", "signed"])
def test_chance_level__is_where_constant_logits_converge(mode, classes):
    reading = DrLocReading(mode=mode, classes=classes)
    grid, pairs = torch.rand(1, 2, 3, 4), all_pairs(3, 4)
    logits = [torch.zeros(count, requires_grad=True) for count in class_counts(3, 4, reading.classes)]
    optimizer = torch.optim.Adam(logits, lr=0.3)
    for _ in range(200):
        rows, columns = (axis.expand(*pairs.shape[:2], -1) for axis in logits)
        loss = drloc_loss(grid, lambda *_, outputs=(rows, columns): outputs, reading, pairs=pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() == pytest.approx(drloc_chance_level(3, 4, reading), abs=2e-3)


def test_drloc_loss__is_zero_for_a_grid_that_holds_its_coordinates():
    rows = torch.arange(5.0)[:, None].expand(5, 9) / 5
    columns = torch.arange(9.0).expand(5, 9) / 9
    grid = torch.stack((rows, columns)).expand(2, -1, -1, -1)

    def exact(grid, pairs):
        first, second = gather_pairs(grid, pairs).unbind(2)
        distance = (first - second).abs()
        return distance[..., :1], distance[..., 1:]

    loss = drloc_loss(grid, exact, generator=torch.Generator().manual_seed(0))
    assert loss.item() == pytest.approx(0, abs=1e-6)


def test_drloc_loss__absolute_does_not_care_about_the_order_of_a_pair_for_a_symmetric_head():
    grid, pairs = torch.rand(2, 3, 4, 6), recorded_pairs("mix") % 4

    def symmetric(grid, pairs):
        total = gather_pairs(grid, pairs).sum((2, 3))[..., None]
        return total, 2 * total

    for reading, same in ((DrLocReading(), True), (DrLocReading(mode="signed"), False)):
        ahead, back = (drloc_loss(grid, symmetric, reading, pairs=p).item() for p in (pairs, pairs.flip(2)))
        assert (ahead == pytest.approx(back, rel=1e-6)) is same


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_drloc_loss__is_computed_in_float32_or_better(dtype):
    def head(grid, pairs):
        outputs = gather_pairs(grid, pairs).flatten(2)[..., :26].mul(8).chunk(2, dim=-1)
        return outputs[0], outputs[1]

    grid = torch.rand(2, 16, 7, 7, dtype=dtype)
    pairs = recorded_pairs("mix")
    reading = DrLocReading(mode="reg")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = drloc_loss(grid, head, reading, pairs=pairs)
    exact = drloc_loss(grid.double(), head, reading, pairs=pairs)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_drloc_loss__needs_a_source_of_pairs_and_enough_classes():
    grid = torch.rand(2, 3, 7, 7)
    with pytest.raises(ValueError, match="generator"):
        drloc_loss(grid, zero)
    with pytest.raises(ValueError, match=r"\(13, 13\) classes \(rows, columns\), but the head has \(13, 7\)"):
        drloc_loss(grid, constant_head([0.0] * 13, [0.0] * 7), DrLocReading(mode="ce"), pairs=recorded_pairs("mix"))
    with pytest.raises(ValueError, match="prediction has shape"):
        drloc_loss(grid, constant_head([0.0, 0.0], [0.0]), pairs=recorded_pairs("mix"))


def test_pool_grid__paper_averages_two_by_two():
    grid = torch.rand(2, 3, 14, 14)
    pooled = pool_grid(grid, "paper")
    torch.testing.assert_close(pooled, grid.unflatten(3, (7, 2)).unflatten(2, (7, 2)).mean((3, 5)))
    torch.testing.assert_close(pool_grid(grid, 7), pooled)


def test_pool_grid__reference_averages_overlapping_windows_without_padding():
    grid = torch.rand(1, 1, 14, 14)
    pooled = pool_grid(grid, "reference")[0, 0]
    for row in range(7):
        for column in range(7):
            top, left = max(2 * row - 1, 0), max(2 * column - 1, 0)
            window = grid[0, 0, top : 2 * row + 2, left : 2 * column + 2]
            assert pooled[row, column].item() == pytest.approx(window.mean().item(), rel=1e-6)


@pytest.mark.parametrize("pool", ["none", "paper", "reference"])
def test_pool_grid__keeps_other_grids(pool):
    for size in ((7, 7), (16, 16), (14, 28), (28, 28)):
        grid = torch.rand(1, 2, *size)
        assert torch.equal(pool_grid(grid, pool), grid)


@pytest.mark.parametrize(
    ("size", "side", "pooled"),
    [
        ((14, 28), 7, (7, 14)),
        ((24, 16), 7, (10, 7)),
        ((7, 9), 7, (7, 9)),
        ((16, 16), 7, (7, 7)),
        ((4, 4), 7, (4, 4)),
    ],
)
def test_pool_grid__number_is_the_shorter_side(size, side, pooled):
    grid = torch.rand(1, 2, *size)
    assert pool_grid(grid, side).shape[2:] == pooled
    constant = torch.full_like(grid, 3.0)
    assert torch.allclose(pool_grid(constant, side), torch.tensor(3.0))


def test_pool_grid__refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="'max'"):
        pool_grid(torch.rand(1, 1, 14, 14), "max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got 0"):
        pool_grid(torch.rand(1, 1, 14, 14), 0)


def test_drloc_loss__refuses_a_single_cell():
    with pytest.raises(ValueError, match="1 x 1"):
        drloc_loss(torch.rand(2, 4, 1, 1), zero, pairs=torch.zeros(2, 1, 2, 2, dtype=torch.int64))


def test_variance_regression__of_a_certain_prediction_is_finite():
    logits = torch.tensor([[[0.0, 500.0, 0.0]]], requires_grad=True)
    right = offset_variance_regression(logits, torch.tensor([[1]]), log_variance_factor=0.001, eps=1e-8)
    assert right.item() == pytest.approx(0.001 * -18.42068, rel=1e-5)  # 0 / eps + factor * ln(eps)
    right.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
