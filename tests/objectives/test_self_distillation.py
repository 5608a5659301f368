"""Self-distillation: the recorded heads and schedules, who gets gradient, and what follows what."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paucal.backbones import BackboneSpec
from paucal.losses import view_targets
from paucal.objectives import SelfDistillation, SelfDistillationOptions
from paucal.objectives.distilled_network import ProjectionHead, group_by_size
from paucal.objectives.self_distillation import clip_each_gradient, compute_mean_score, mix_crops, mix_targets
from paucal.training import Optimization, Plan, WarmupThenCosine
from paucal.training.module import TrainingModule
from paucal.types import Batch, Crops, Progress, UserError
from vectors import fill

VECTORS = Path(__file__).parents[1] / "vectors"
HEADS = json.loads((VECTORS / "dino_head.json").read_text())
SCHEDULES = json.loads((VECTORS / "esvit_schedules.json").read_text())
TINY = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
OPTIONS = {"out_dim": 24, "hidden_dim": 16, "bottleneck_dim": 8}
CROPS = [Crops(2, 16, (0.4, 1.0)), Crops(3, 8, (0.2, 0.5))]
START = Progress(0, 100, 10)


def make(crops=None, name="vit_tiny_patch16_224", arguments=TINY, seed=0, **options):
    torch.manual_seed(seed)
    spec = BackboneSpec(name, 0, image_size=(16, 16), arguments=arguments)
    return SelfDistillation(spec, crops or CROPS, SelfDistillationOptions(**{**OPTIONS, **options})).train()


def batch_of(crops=None, images=4, seed=1):
    draw = torch.Generator().manual_seed(seed)
    sizes = [group.size for group in crops or CROPS for _ in range(group.count)]
    return Batch(torch.arange(images), [torch.rand(images, 3, size, size, generator=draw) for size in sizes])


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("rule", ["mix", "sine"])
@pytest.mark.parametrize("case", ["layers3_bn0", "layers1_bn0", "layers3_bn1", "layers1_bn1"])
def test_head__equals_the_recorded_one(rule, case):
    expected = HEADS["runs"][rule]["expected"][case]
    head = ProjectionHead(16, 32, 24, 8, layers=int(case[6]), batch_norm=case.endswith("1")).eval()
    assert [name for name, *_ in expected["state_dict"]] == list(head.state_dict())
    filled = {
        name: value if name.endswith("num_batches_tracked") else torch.from_numpy(fill.fill(name, value.shape, rule))
        for name, value in head.state_dict().items()
    }
    head.load_state_dict(filled)
    rows = torch.from_numpy(fill.tensor("esvit.head_input", (6, 16), 1.0, rule))
    values = head(rows).flatten().tolist()
    np.testing.assert_allclose(values, expected["output"]["values"], rtol=1e-5, atol=2e-6)
    frozen = [name for name, parameter in head.named_parameters() if not parameter.requires_grad]
    assert frozen == expected["frozen"]


def test_schedules__equal_the_recorded_ones():
    total, epoch = 300 * 2502, 2502
    options = SelfDistillationOptions()
    rate = WarmupThenCosine(1e-3, total, 10 * epoch, 1e-6)
    functions = [
        rate,
        lambda step: options.decay(Progress(step, total, epoch)),
        lambda step: options.teacher_momentum(Progress(step, total, epoch)),
    ]
    for function, recorded in zip(functions, SCHEDULES["schedules"], strict=True):
        for step, value in recorded["values"]:
            assert function(step) == pytest.approx(value, rel=1e-9), recorded["schedule"]
    small = WarmupThenCosine(2e-3, 140, 21, 1e-5)
    for step, value in SCHEDULES["small"][0]["values"]:
        assert small(step) == pytest.approx(value, rel=1e-9)
    for row in SCHEDULES["teacher_temperature"]["rows"]:
        options = SelfDistillationOptions(
            warmup_teacher_temperature=row["warmup_temp"],
            teacher_temperature=row["temp"],
            warmup_teacher_epochs=row["warmup_epochs"],
        )
        for number, value in row["values"]:
            assert options.temperature(number) == pytest.approx(value, rel=1e-9)


def test_gradient__reaches_all_of_the_student_and_nothing_else():
    objective = make()
    objective(batch_of(), START).total.backward()
    without = {name for name, p in objective.named_parameters() if p.grad is None}
    lengths = {f"student.heads.{task}.last_layer.weight_g" for task in ("view", "region")}
    assert without == {name for name, _ in objective.named_parameters() if name.startswith("teacher.")} | lengths
    assert all(p.grad.abs().sum() > 0 for p in objective.student.parameters() if p.grad is not None)


def test_losses__begin_at_chance_for_equal_networks_and_are_weighted():
    objective = make()
    terms = objective(batch_of(), START)
    assert set(terms.values) == {"view", "region"}
    assert terms.weights == {"view": 0.5, "region": 0.5}
    assert objective.chance_levels() == {"view": math.log(24), "region": math.log(24)}
    assert terms.total.item() == pytest.approx(0.5 * sum(value.item() for value in terms.values.values()), rel=1e-6)
    alone = make(tasks="view")
    assert alone(batch_of(), START).weights == {"view": 1.0}
    assert not any("region" in name for name, _ in alone.named_parameters())
    assert alone(batch_of(), START).values["view"].item() == pytest.approx(terms.values["view"].item(), rel=1e-6)


def test_teacher__starts_as_the_student_without_drop_path_and_follows_it():
    objective = make()
    before, student = state(objective.teacher), state(objective.student)
    assert all(torch.equal(before[name], student[name]) for name in before)
    with torch.no_grad():
        for parameter in objective.student.parameters():
            parameter.add_(1.0)
    objective(batch_of(), START)
    objective.after_step(Progress(51, 100, 10))
    momentum = 1 - 0.004 * 0.5  # half of the way: the step that was made is number 50 of 100
    for name, value in objective.teacher.named_parameters():
        torch.testing.assert_close(value, before[name] + (1 - momentum), rtol=0, atol=1e-6)


def test_mean_score__is_in_full_precision_under_autocast():
    generator = torch.Generator().manual_seed(0)
    rows, prototypes = torch.randn(4, 3, 16, generator=generator), torch.randn(50, 16, generator=generator)
    expected = (rows @ prototypes.T).mean((0, 1))
    with torch.autocast("cpu", torch.bfloat16):
        found = compute_mean_score(rows, prototypes)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_centre__is_that_of_all_micro_batches_and_moves_once_a_step():
    objective, one, two = make(), batch_of(seed=1), batch_of(seed=2)
    means = []
    for batch in (one, two):
        seen = objective.teacher.extract(batch.views[:2])
        means.append(objective.teacher.head("view")(seen.pooled).flatten(0, 1).mean(0))
        objective(batch, START)
    assert objective.get_buffer("centre_view").abs().sum() == 0
    objective.after_step(Progress(1, 100, 10))
    expected = 0.1 * torch.stack(means).mean(0)
    torch.testing.assert_close(objective.get_buffer("centre_view"), expected.detach(), rtol=1e-4, atol=1e-7)
    assert objective.get_buffer("centre_region").abs().sum() > 0
    objective.eval()(one, START)
    objective.after_step(Progress(2, 100, 10))
    torch.testing.assert_close(objective.get_buffer("centre_view"), expected.detach(), rtol=1e-4, atol=1e-7)


def test_backbone__runs_once_per_resolution_and_the_teacher_sees_global_crops_alone():
    crops = [Crops(2, 16, (0.4, 1.0)), Crops(2, 8, (0.2, 0.5)), Crops(1, 12, (0.2, 0.5)), Crops(1, 16, (0.2, 0.5))]
    objective, batch = make(crops), batch_of(crops)
    shapes = {"student": [], "teacher": []}
    for name, network in (("student", objective.student), ("teacher", objective.teacher)):
        network.backbone.register_forward_pre_hook(lambda _, given, name=name: shapes[name].append(given[0].shape))
    terms = objective(batch, START)
    assert [tuple(shape) for shape in shapes["teacher"]] == [(8, 3, 16, 16)]
    assert [tuple(shape) for shape in shapes["student"]] == [(12, 3, 16, 16), (8, 3, 8, 8), (4, 3, 12, 12)]
    assert torch.isfinite(terms.total)
    seen = objective.student.extract(batch.views)
    for number, view in enumerate(batch.views):
        alone = objective.student.backbone(view)
        torch.testing.assert_close(seen.pooled[:, number], alone.pooled, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(seen.cells[number], alone.grids[0].flatten(2).mT, rtol=1e-4, atol=1e-5)
    assert group_by_size(batch.views) == [[0, 1, 5], [2, 3], [4]]


@pytest.mark.parametrize("crops", [[Crops(2, 16)], [Crops(1, 16), Crops(2, 8)], [Crops(3, 16), Crops(1, 8)]])
def test_any_groups__of_crops_work_with_both_tasks(crops):
    objective = make(crops)
    objective(batch_of(crops), START).total.backward()
    gradient = objective.student.head("region").last_layer.weight_v.grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_one_crop__makes_no_pair():
    with pytest.raises(ValueError, match="needs at least 2 per image, got 1"):
        make([Crops(1, 16)])
    with pytest.raises(ValueError, match="needs a size"):
        make([Crops(2)])


def test_backbone__that_cannot_take_the_small_crop_is_refused():
    with pytest.raises(UserError, match="does not run at"):
        make([Crops(2, 16, (0.4, 1.0)), Crops(2, 6, (0.2, 0.5))])


def test_prototypes__stay_in_the_first_epoch_only():
    objective = make(freeze_last_layer=1)
    kept = [objective.student.head(task).last_layer.weight_v for task in ("view", "region")]
    for step, frozen in ((9, True), (10, False)):
        objective(batch_of(), Progress(step, 100, 10)).total.backward()
        objective.before_step(Progress(step, 100, 10))
        assert [parameter.grad is None for parameter in kept] == [frozen, frozen]
        assert objective.student.head("view").mlp[0].weight.grad is not None
        objective.zero_grad()


def test_clipping__is_of_each_tensor_by_itself():
    small, large = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    small.grad, large.grad = torch.tensor([0.3, 0.4]), torch.tensor([30.0, 40.0])
    clip_each_gradient([small, large, torch.nn.Parameter(torch.zeros(1))], 3.0)
    assert small.grad.tolist() == pytest.approx([0.3, 0.4])
    assert large.grad.tolist() == pytest.approx([1.8, 2.4], rel=1e-5)


def test_weight_decay__rises_from_its_beginning_to_its_end():
    objective = make()
    factors = [objective.group_scales(Progress(step, 100, 10))["main"].weight_decay for step in (0, 50, 100)]
    assert [factor * 0.4 for factor in factors] == pytest.approx([0.04, 0.22, 0.4])


SWIN = {"patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]}


# EsViT's sheet, 1.7: relative-position tables are decayed by its program, on the half cosine from 0.04 to 0.4.
@pytest.mark.parametrize("decays_tables", [False, True])
def test_weight_decay__reaches_tables_of_relative_positions_in_the_programs_reading(decays_tables, monkeypatch):
    monkeypatch.setattr(TrainingModule, "trainer", SimpleNamespace(global_step=0))
    objective = make(name="esvit_swin_tiny_patch4_window7_224", arguments=SWIN, decays_tables=decays_tables)
    plan = Plan(total_steps=100, steps_per_epoch=10)
    module = TrainingModule(
        objective, Optimization(lambda step: 1e-3, objective.options.highest_decay, clip=5.0), plan, list
    )
    optimizer = module.configure_optimizers()
    tables = {name for name, _ in objective.student.named_parameters() if "relative_position_bias_table" in name}
    assert len(tables) == 2
    for step, decay in ((0, 0.04), (50, 0.22), (100, 0.4)):
        module._set_rates(optimizer, Progress(step, 100, 10))
        found = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["names"]}
        assert [found[f"student.{name}"] for name in tables] == pytest.approx([decay if decays_tables else 0.0] * 2)
        assert found["student.heads.view.mlp.0.weight"] == pytest.approx(decay)
        assert {value for name, value in found.items() if name.endswith(".bias")} == {0.0}


@pytest.mark.parametrize("kind", ["batch", "running"])
def test_teachers_statistics__are_those_that_were_chosen(kind):
    objective = make([Crops(2, 16), Crops(1, 8)], "resnet18", {}, teacher_norm=kind)
    norm = objective.teacher.backbone.model.bn1
    batch = batch_of([Crops(2, 16), Crops(1, 8)])
    before = norm.running_mean.clone()
    objective(batch, START)
    assert norm.training == (kind == "batch")
    assert torch.equal(norm.running_mean, before) == (kind == "running")
    student = objective.student.backbone.model.bn1
    after = norm.running_mean.clone()
    objective.after_step(Progress(1, 100, 10))
    if kind == "running":
        torch.testing.assert_close(norm.running_mean, before.lerp(student.running_mean, 0.004))
        assert norm.num_batches_tracked == student.num_batches_tracked > 0
    else:
        assert torch.equal(norm.running_mean, after)


def test_health__is_looked_at_every_ten_steps_and_tells_what_it_says():
    objective = make()
    objective(batch_of(), START)
    found = objective.diagnostics()
    names = {"teacher_entropy", "student_entropy", "batch_entropy", "agreement", "feature_spread", "effective_rank"}
    names |= {"feature_norm", "centre_norm"}
    assert set(found) == names | {f"region_{name}" for name in names} | {"teacher_distance", "teacher_temperature"}
    assert found["teacher_distance"] == 0
    assert found["teacher_temperature"] == pytest.approx(0.04)
    seen = objective.teacher.extract(batch_of().views[:2])
    assert found["feature_norm"].item() == pytest.approx(seen.pooled[:, 0].norm(dim=1).mean().item(), rel=1e-5)
    assert 0 <= found["teacher_entropy"] <= found["batch_entropy"] + 1e-5 <= math.log(24) + 2e-5
    assert objective.diagnostics() == {}
    objective(batch_of(), Progress(5, 100, 10))
    assert objective.diagnostics() == {}
    objective(batch_of(), Progress(6, 12, 3))
    assert objective.diagnostics() != {}


def test_mixup__compares_a_mixture_with_both_of_its_images():
    crops = [torch.rand(3, 3, 4, 4) for _ in range(2)]
    mixed, shares = mix_crops(crops, 0.8)
    for crop, result, share in zip(crops, mixed, shares, strict=True):
        torch.testing.assert_close(result[0], share * crop[0] + (1 - share) * crop[2])
    teacher = torch.randn(3, 2, 4)
    rows, targets = mix_targets(teacher, view_targets(3, 2, 2), torch.tensor([0.25, 1.0]))
    assert torch.equal(rows[0, 2:], teacher[2])
    torch.testing.assert_close(targets.weights, torch.tensor([[0.0, 0.125, 0.0, 0.375], [0.5, 0.0, 0.0, 0.0]]))
    objective = make(tasks="view", mixup=0.8)
    torch.manual_seed(0)
    plain, mixed_loss = make(tasks="view")(batch_of(), START), objective(batch_of(), START)
    assert mixed_loss.total.item() != plain.total.item()
    mixed_loss.total.backward()
    with pytest.raises(ValueError, match="only supported if tasks is 'view'"):
        SelfDistillationOptions(mixup=0.5)


def test_deployable__is_the_teachers_backbone():
    objective = make()
    assert objective.deployable() is objective.teacher.backbone.model
    assert objective.deployable().num_classes == 0
    assert objective.data_request.labels is False
    assert objective.data_request.views == tuple(CROPS)


@pytest.mark.parametrize("wrong", [{"student_temperature": 0}, {"momentum": 1.5}, {"out_dim": 1}])
def test_options__out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SelfDistillationOptions(**wrong)
