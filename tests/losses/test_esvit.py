"""The losses of EsViT against recorded numbers of the published program, and against plain loops."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from paucal.losses import (
    EsvitTask,
    Sharpness,
    Targets,
    esvit_loss,
    match_regions,
    moved_centre,
    prototype_cross_entropy,
    region_targets,
    view_pairs,
    view_targets,
)
from paucal.losses.prototypes import chunk_size
from vectors import fill

RECORDED = json.loads((Path(__file__).parents[1] / "vectors" / "esvit_losses.json").read_text())
TEMPERATURES = {0: 0.04, 15: 0.04 + 0.03 * 15 / 29, 100: 0.07}
CASES = [(rule, local, epoch) for rule in ("mix", "sine") for local in (2, 8) for epoch in TEMPERATURES]
IMAGES, GLOBAL, LOCAL = 2, 49, 9


def recorded_rows(rule, local, name, rows, width):
    values = fill.tensor(f"esvit.2+{local}.{name}", (rows, width), 1.0, rule)
    return torch.from_numpy(values)


def crops(rows, counts):
    """Split rows that are crop-major, then image, then token; give (B, T, D) per crop."""
    parts = rows.split([IMAGES * count for count in counts])
    return [part.view(IMAGES, count, -1) for part, count in zip(parts, counts, strict=True)]


def recorded_inputs(rule, local):
    counts = [GLOBAL] * 2 + [LOCAL] * local
    cells = sum(counts) * IMAGES
    return {
        "student_view": crops(recorded_rows(rule, local, "student_view", (2 + local) * 2, 32), [1] * (2 + local)),
        "student_region": crops(recorded_rows(rule, local, "student_region", cells, 32), counts),
        "student_features": crops(recorded_rows(rule, local, "student_features", cells, 16), counts),
        "teacher_view": crops(recorded_rows(rule, local, "teacher_view", 4, 32), [1, 1]),
        "teacher_region": crops(recorded_rows(rule, local, "teacher_region", 196, 32), [GLOBAL] * 2),
        "teacher_features": crops(recorded_rows(rule, local, "teacher_features", 196, 16), [GLOBAL] * 2),
    }


def scored(student, teacher, targets, centre, temperature, **options):
    """The loss of scores that are given, which prototypes of unit vectors hand through."""
    unit = torch.eye(student.shape[2])
    sharpness = Sharpness(0.1, temperature, centre)
    return prototype_cross_entropy(student, unit, teacher, unit, targets, sharpness, **options)


def mean_score(teacher):
    return teacher.flatten(0, 1).mean(0)


@pytest.mark.parametrize(("rule", "local", "epoch"), CASES)
def test_losses__equal_the_recorded_ones(rule, local, epoch):
    expected = RECORDED["runs"][rule]["expected"][f"2+{local} epoch {epoch}"]
    inputs = recorded_inputs(rule, local)
    student, teacher = torch.cat(inputs["student_view"], 1), torch.cat(inputs["teacher_view"], 1)
    cells, goals = torch.cat(inputs["student_region"], 1), torch.cat(inputs["teacher_region"], 1)
    student.requires_grad_()
    cells.requires_grad_()
    view, region = view_targets(2, 2, 2 + local), region_targets(inputs["student_features"], inputs["teacher_features"])
    centres = [torch.zeros(32), torch.zeros(32)]
    totals = []
    for _ in range(2):
        parts = [
            scored(student, teacher, view, centres[0], TEMPERATURES[epoch]),
            scored(cells, goals, region, centres[1], TEMPERATURES[epoch]),
        ]
        totals.append(parts)
        means = (mean_score(teacher), mean_score(goals))
        centres = [moved_centre(centre, mean, 0.9) for centre, mean in zip(centres, means, strict=True)]
    (first_view, first_region), (second_view, second_region) = totals
    assert first_view.item() == pytest.approx(expected["view"]["loss"], rel=1e-5)
    assert second_view.item() == pytest.approx(expected["view"]["loss_second_call"], rel=1e-5)
    both = expected["view_region"]
    assert (0.5 * first_view + 0.5 * first_region).item() == pytest.approx(both["loss"], rel=1e-5)
    assert (0.5 * second_view + 0.5 * second_region).item() == pytest.approx(both["loss_second_call"], rel=1e-5)
    (view_slope,) = torch.autograd.grad(first_view, student)
    assert view_slope.norm().item() == pytest.approx(expected["view"]["gradient_l2_student_view"], rel=1e-4)
    (region_slope,) = torch.autograd.grad(0.5 * first_region, cells)
    assert region_slope.norm().item() == pytest.approx(both["gradient_l2_student_region"], rel=1e-4)


def recorded_task(inputs, name, targets=None):
    unit = torch.eye(32)
    student, teacher = (torch.cat(inputs[f"{network}_{name}"], 1) for network in ("student", "teacher"))
    return EsvitTask(student, unit, teacher, unit, torch.zeros(32), targets)


@pytest.mark.parametrize(("rule", "local", "epoch"), CASES)
def test_esvit_loss__is_the_recorded_one_with_and_without_regions(rule, local, epoch):
    expected = RECORDED["runs"][rule]["expected"][f"2+{local} epoch {epoch}"]
    inputs = recorded_inputs(rule, local)
    view = recorded_task(inputs, "view")
    region = recorded_task(inputs, "region", region_targets(inputs["student_features"], inputs["teacher_features"]))
    alone = esvit_loss(view, teacher_temperature=TEMPERATURES[epoch])
    both = esvit_loss(view, region, teacher_temperature=TEMPERATURES[epoch])
    assert alone.total.item() == pytest.approx(expected["view"]["loss"], rel=1e-5)
    assert alone.region is None
    assert both.total.item() == pytest.approx(expected["view_region"]["loss"], rel=1e-5)
    assert both.view.item() == alone.view.item()


def test_esvit_loss__weighs_its_tasks_and_wants_targets_of_cells():
    inputs = recorded_inputs("mix", 2)
    view = recorded_task(inputs, "view")
    region = recorded_task(inputs, "region", region_targets(inputs["student_features"], inputs["teacher_features"]))
    found = esvit_loss(view, region, view_weight=2.0, region_weight=3.0)
    assert found.region is not None
    torch.testing.assert_close(found.total, 2 * found.view + 3 * found.region)
    warm = scored(view.student, view.teacher, view_targets(2, 2, 4), view.centre, 0.04)
    torch.testing.assert_close(found.view, warm)
    cool = esvit_loss(view, student_temperature=0.2)
    assert cool.view.item() != pytest.approx(warm.item(), rel=0.01)
    with pytest.raises(ValueError, match="region_targets"):
        esvit_loss(view, view)


@pytest.mark.parametrize(("rule", "local"), [("mix", 2), ("mix", 8), ("sine", 2), ("sine", 8)])
def test_centres_and_matches__equal_the_recorded_ones(rule, local):
    expected = RECORDED["runs"][rule]["expected"][f"2+{local} epoch 0"]
    inputs = recorded_inputs(rule, local)
    centre = moved_centre(torch.zeros(32), mean_score(torch.cat(inputs["teacher_view"], 1)), 0.9)
    torch.testing.assert_close(centre, torch.tensor(expected["view"]["center"]), rtol=1e-5, atol=1e-7)
    region = moved_centre(torch.zeros(32), mean_score(torch.cat(inputs["teacher_region"], 1)), 0.9)
    torch.testing.assert_close(region, torch.tensor(expected["view_region"]["center_region"]), rtol=1e-5, atol=1e-7)
    assert expected["matched_teacher_token"]
    for pair in expected["matched_teacher_token"]:
        student = inputs["student_features"][pair["student_crop"]]
        index = match_regions(student, inputs["teacher_features"][pair["teacher_crop"]])
        assert index.tolist() == pair["index"]


def plain_loss(student, teacher, student_features, teacher_features, centre, temperature):
    """Both losses as equations, one pair, image and cell after the other."""
    view = region = 0.0
    pairs = view_pairs(len(teacher["view"]), len(student["view"]))
    for q, v in pairs:
        goal = ((teacher["view"][q] - centre) / temperature).softmax(-1)
        view = view - (goal * (student["view"][v] / 0.1).log_softmax(-1)).sum(-1).mean()
        dense = ((teacher["region"][q] - centre) / temperature).softmax(-1)
        likely = (student["region"][v] / 0.1).log_softmax(-1)
        total = 0.0
        for image in range(likely.shape[0]):
            for cell in range(likely.shape[1]):
                alike = F.cosine_similarity(student_features[v][image, cell][None], teacher_features[q][image])
                total = total - (dense[image, alike.argmax()] * likely[image, cell]).sum()
        region = region + total / (likely.shape[0] * likely.shape[1])
    return view / len(pairs), region / len(pairs)


@pytest.mark.parametrize("counts", [[9, 9], [9, 9, 4, 4, 4], [9, 9, 4, 6], [9, 4, 4], [4, 4, 4]])
@pytest.mark.parametrize("chunk", [1, 150, 1 << 24])
def test_fused__equals_a_plain_loop_with_its_gradients(counts, chunk):
    teachers = 1 if counts[1] == 4 and counts[0] == 9 else 2
    draw = torch.Generator().manual_seed(0)

    def rows(*shape):
        return torch.randn(*shape, generator=draw)

    width, prototypes, images = 5, 11, 3
    kernel, teacher_kernel = rows(prototypes, width).requires_grad_(), rows(prototypes, width)
    centre = rows(prototypes) * 0.1
    views = [rows(images, 1, width).requires_grad_() for _ in counts]
    cells = [rows(images, count, width).requires_grad_() for count in counts]
    goals = [rows(images, 1, width) for _ in range(teachers)]
    dense_goals = [rows(images, count, width) for count in counts[:teachers]]
    features = [rows(images, count, 7) for count in counts]
    teacher_features = [rows(images, count, 7) for count in counts[:teachers]]
    plain = plain_loss(
        {"view": [v @ kernel.T for v in views], "region": [c @ kernel.T for c in cells]},
        {"view": [g @ teacher_kernel.T for g in goals], "region": [g @ teacher_kernel.T for g in dense_goals]},
        features,
        teacher_features,
        centre,
        0.05,
    )
    sharpness = Sharpness(0.1, 0.05, centre)
    targets = (view_targets(images, teachers, len(counts)), region_targets(features, teacher_features))
    pairs = ((views, goals), (cells, dense_goals))
    for expected, aim, (student, teacher) in zip(plain, targets, pairs, strict=True):
        ours = prototype_cross_entropy(
            torch.cat(student, 1), kernel, torch.cat(teacher, 1), teacher_kernel, aim, sharpness, chunk
        )
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
        leaves = [*student, kernel]
        slopes = [torch.autograd.grad(3 * loss, leaves, allow_unused=True) for loss in (ours, expected)]
        for one, other in zip(*slopes, strict=True):
            other = torch.zeros_like(one) if other is None else other  # a crop that meets no other
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * max(1.0, other.abs().max().item()))


def test_gradient__reaches_the_student_alone():
    student, kernel = torch.randn(2, 3, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    teacher, other = torch.randn(2, 2, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    sharpness = Sharpness(0.1, 0.04, torch.zeros(6, requires_grad=True))
    prototype_cross_entropy(student, kernel, teacher, other, view_targets(2, 2, 3), sharpness).backward()
    for leaf in (student, kernel):
        assert leaf.grad is not None
        assert leaf.grad.abs().sum() > 0
    assert teacher.grad is other.grad is sharpness.centre.grad is None


def test_chunks__hold_no_more_scores_than_asked(monkeypatch):
    import paucal.losses.prototypes as fused

    held = []
    compared = fused._summed_cross_entropy
    monkeypatch.setattr(
        fused, "_summed_cross_entropy", lambda s, p, g, *rest: (held.append(g.numel()), compared(s, p, g, *rest))[1]
    )
    student, kernel = torch.randn(8, 5, 4), torch.randn(10, 4)
    sharpness = Sharpness(0.1, 0.04, torch.zeros(10))
    whole = prototype_cross_entropy(student, kernel, student, kernel, view_targets(8, 5, 5), sharpness, 10**6)
    assert held == [400]
    parts = prototype_cross_entropy(student, kernel, student, kernel, view_targets(8, 5, 5), sharpness, 110)
    assert held[1:] == [100] * 4
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize(("gigabytes", "scores"), [(2, 2**24), (8, 53_687_091), (80, 2**27)])
def test_chunks__of_a_gpu_grow_with_its_memory(gigabytes, scores, monkeypatch):
    properties = SimpleNamespace(total_memory=gigabytes << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert chunk_size(torch.device("cuda")) == scores
    assert chunk_size(torch.device("cpu")) == 2**24


def test_half_precision__changes_nothing_and_keeps_the_dtypes():
    student, kernel = torch.randn(4, 3, 16).bfloat16().float(), torch.randn(64, 16, requires_grad=True)
    student.requires_grad_()
    teacher = torch.randn(4, 2, 16)
    sharpness, aim = Sharpness(0.1, 0.04, torch.zeros(64)), view_targets(4, 2, 3)
    exact = prototype_cross_entropy(student, kernel, teacher, kernel.detach(), aim, sharpness)
    half_student = student.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        half = prototype_cross_entropy(half_student, kernel, teacher, kernel.detach(), aim, sharpness)
    assert half.dtype == torch.float32
    assert half.item() == exact.item()
    rough, expected = torch.autograd.grad(half, (half_student, kernel)), torch.autograd.grad(exact, (student, kernel))
    assert [slope.dtype for slope in rough] == [torch.bfloat16, torch.float32]
    assert torch.equal(rough[0], expected[0].bfloat16())
    assert torch.equal(rough[1], expected[1])


def test_identical_crops__match_cell_by_cell():
    cells = torch.randn(2, 9, 16)
    assert (match_regions(cells, cells) == torch.arange(9)).all()
    assert (match_regions(cells * 3, cells) == torch.arange(9)).all()
    lengths = torch.tensor([1.0, 100.0])[:, None]
    student, teacher = torch.tensor([[[1.0, 0.2]]]), (torch.tensor([[1.0, 0.0], [0.3, 1.0]]) * lengths)[None]
    assert match_regions(student, teacher, "cosine").item() == 0
    assert match_regions(student, teacher, "dot").item() == 1


def test_pairs__are_those_of_two_crops():
    assert [len(view_pairs(2, views)) for views in (2, 3, 10)] == [2, 4, 18]
    assert all(q != v for q, v in view_pairs(2, 10))
    weights = view_targets(1, 2, 10).weights
    assert weights.sum().item() == pytest.approx(1.0)
    assert [weights[0, 0].item(), weights[1, 1].item()] == [0, 0]
    with pytest.raises(ValueError, match="no pair of different crops"):
        view_targets(1, 1, 1)


def test_centre__keeps_its_value_where_a_score_is_no_number():
    centre = torch.tensor([1.0, 2.0])
    assert moved_centre(centre, torch.tensor([torch.nan, 1.0]), 0.9).tolist() == [1.0, 2.0]
    torch.testing.assert_close(moved_centre(centre, torch.tensor([2.0, 2.0]), 0.75), torch.tensor([1.25, 2.0]))


def test_targets__are_counted_once_however_often_they_are_named():
    """Two halves of one comparison are the whole of it."""
    student, kernel, teacher = torch.randn(2, 1, 4), torch.randn(6, 4), torch.randn(2, 3, 4)
    sharpness = Sharpness(0.1, 0.04, torch.zeros(6))
    once = Targets(torch.full((2, 1, 1), 2), torch.ones(1, 1))
    twice = Targets(torch.full((2, 1, 2), 2), torch.tensor([[0.5, 0.5]]))
    losses = [prototype_cross_entropy(student, kernel, teacher, kernel, aim, sharpness) for aim in (once, twice)]
    torch.testing.assert_close(*losses)
