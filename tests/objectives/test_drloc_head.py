"""The localization head against the authors' numbers, and its two ways to the same value."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones.empty_models import meta_device
from paucal.losses import DrLocReading, class_counts, drloc_loss, sample_pairs
from paucal.objectives.drloc import LocalizationHead
from rounding import exact_and_bound, require_within
from vectors.drloc_inputs import TOLERANCE, expected, recorded_grid, recorded_pairs
from vectors.fill import fill

rules = pytest.mark.parametrize("rule", ["mix", "sine"])
# Eight copies of the pairs leave every mean as it is and outnumber the 49 cells: one first layer per cell.
copies = pytest.mark.parametrize("copies", [1, 8])


def reference_head(rule, classes=None):
    """The head with the authors' parameters, filled under their names."""
    head = LocalizationHead(16, classes=classes, extra_layer=True)
    names = {"layers.0": head.first, "layers.2": head.second}
    names["layers.4"] = head.last if classes is None else head.extra
    state = {}
    for name, layer in names.items():
        for kind, value in layer.named_parameters():
            state[value] = fill(f"{name}.{kind}", value.shape, rule)
    with torch.no_grad():
        for value, filled in state.items():
            value.copy_(torch.from_numpy(filled))
        for axis, rows in enumerate(head.last.weight.split(classes) if classes else ()):
            rows.copy_(torch.from_numpy(fill(f"unshared.{axis}.weight", rows.shape, rule)))
        for axis, rows in enumerate(head.last.bias.split(classes) if classes else ()):
            rows.copy_(torch.from_numpy(fill(f"unshared.{axis}.bias", rows.shape, rule)))
    return head


def recorded_loss(head, reading, rule, copies):
    pairs = recorded_pairs(rule).repeat(1, copies, 1, 1)
    return drloc_loss(recorded_grid(rule), head, reading, pairs=pairs).item()


@rules
def test_head__has_the_parameters_of_the_reference(rule):
    classes = (13, 13)
    for head, entry in (
        (reference_head(rule), "head_state_dict_l1"),
        (reference_head(rule, classes), "head_state_dict_ce_signed"),
    ):
        recorded = sum(torch.Size(shape).numel() for _, shape, _ in expected(rule)[entry])
        assert sum(p.numel() for p in head.parameters()) == recorded


@rules
@copies
def test_head__l1_predictions_match_the_reference(rule, copies):
    pairs = recorded_pairs(rule).repeat(1, copies, 1, 1)
    got = torch.cat(reference_head(rule)(recorded_grid(rule), pairs), dim=-1)[:, -8:]
    want = torch.tensor(expected(rule)["head_predictions_l1"]["values"])
    torch.testing.assert_close(got.flatten(), want, rtol=0, atol=2e-5)


@rules
@copies
@pytest.mark.parametrize(
    ("entry", "reading"),
    [
        ("raw_abs", DrLocReading(scale="none")),
        ("abs_over_k", DrLocReading()),
        ("abs_over_k_minus_1", DrLocReading(scale="side_minus_1")),
        ("shifted_signed", DrLocReading(mode="signed", shifted=True, scale="none")),
        ("signed_over_k", DrLocReading(mode="signed")),
    ],
)
def test_head__l1_losses_match_the_reference(rule, copies, entry, reading):
    loss = recorded_loss(reference_head(rule), reading, rule, copies)
    assert loss == pytest.approx(expected(rule)["head_l1_loss"][entry], rel=TOLERANCE[rule])


@rules
@copies
@pytest.mark.parametrize("kind", ["ce", "cbr"])
@pytest.mark.parametrize("classes", ["abs", "signed"])
@pytest.mark.parametrize("constant", [7, 14])
def test_head__class_losses_match_the_reference(rule, copies, kind, classes, constant):
    want = expected(rule)[f"head_{kind}_{classes}_out{constant}"]
    words = {"abs": "absolute", "signed": "signed"}
    counts = class_counts(constant, constant, words[classes])
    assert counts[0] == want["classes"]
    mode = {"ce": "ce", "cbr": "reg"}[kind]
    reading = DrLocReading(mode=mode, classes=words[classes], log_of="variance")
    head = reference_head(rule, counts)
    assert recorded_loss(head, reading, rule, copies) == pytest.approx(want["loss"], rel=TOLERANCE[rule])

    logits = torch.stack(head(recorded_grid(rule), recorded_pairs(rule)), dim=-1).double()
    assert logits.flatten()[:8].tolist() == pytest.approx(want["first8"], abs=2e-5)
    assert logits.norm().item() == pytest.approx(want["l2"], rel=TOLERANCE[rule])


@pytest.mark.parametrize(
    ("dim", "side", "classes", "extra_layer", "count"),
    [
        (768, 7, None, False, 1_050_626),
        (384, 7, None, False, 657_410),
        (2048, 7, None, False, 2_361_346),
        (768, 7, "absolute", True, 1_319_438),
        (768, 7, "signed", True, 1_325_594),
        (768, 14, "absolute", True, 1_326_620),
        (768, 14, "signed", True, 1_339_958),
        (384, 14, "absolute", True, 933_404),
        (384, 14, "signed", True, 946_742),
        (2048, 14, "absolute", True, 2_637_340),
        (2048, 14, "signed", True, 2_650_678),
        (768, 7, "signed", False, 1_325_594 - 262_656),
    ],
)
def test_head__parameter_counts(dim, side, classes, extra_layer, count):
    with meta_device():
        counts = class_counts(side, side, classes) if classes else None
        head = LocalizationHead(dim, classes=counts, extra_layer=extra_layer)
    assert sum(p.numel() for p in head.parameters()) == count


@pytest.mark.parametrize("size", [(3, 5), (7, 7)])
def test_head__once_per_cell_equals_once_per_pair_in_value_and_gradient(size):
    torch.manual_seed(0)
    head = LocalizationHead(12, 24, classes=(5, 9)).double()
    few = sample_pairs(2, 6, *size, generator=torch.Generator().manual_seed(0))
    results = []
    for pairs in (few, few.repeat(1, 10, 1, 1)):
        grid = torch.rand(2, 12, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        grid.requires_grad_()
        rows, columns = head(grid, pairs)
        loss = rows.square().mean() + columns.sin().mean()
        results.append([loss, rows[:, :6], *torch.autograd.grad(loss, [grid, *head.parameters()])])
    for per_pair, per_cell in zip(*results, strict=True):
        torch.testing.assert_close(per_cell, per_pair)


@pytest.mark.parametrize(("size", "applications"), [((7, 7), 49), ((8, 8), 64), ((9, 9), 64), ((14, 14), 64)])
def test_head__first_layer_runs_over_the_fewer_of_cells_and_pairs(size, applications):
    dim, hidden, pairs = 32, 16, 64
    head = LocalizationHead(dim, hidden)
    cells = sample_pairs(1, pairs, *size, generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        head(torch.rand(1, dim, *size), cells)
    products = applications * 2 * dim * hidden + pairs * (hidden * hidden + hidden * 2)
    assert counter.get_total_flops() == 2 * products


def test_head__first_and_second_cell_are_told_apart():
    torch.manual_seed(0)
    head, grid = LocalizationHead(8, 16), torch.rand(1, 8, 4, 4)
    pairs = sample_pairs(1, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    rows, _ = head(grid, pairs)
    swapped, _ = head(grid, pairs.flip(2))
    assert not torch.allclose(rows, swapped)


@pytest.mark.parametrize("copies", [1, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_head__takes_grids_of_half_precision(copies, dtype):
    head, grid = LocalizationHead(16), recorded_grid("mix").to(dtype)
    pairs = recorded_pairs("mix").repeat(1, copies, 1, 1)
    exact = drloc_loss(grid.float(), head, pairs=pairs)
    assert drloc_loss(grid, head, pairs=pairs).item() == pytest.approx(exact.item(), rel=1e-6)
    answer = exact_and_bound(head, grid, dtype, lambda head, grid: drloc_loss(grid, head, pairs=pairs))
    with torch.autocast("cpu", dtype=dtype):
        loss = drloc_loss(grid, head, pairs=pairs)
    loss.backward()
    assert loss.dtype == torch.float32
    require_within(loss.detach(), *answer)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())
