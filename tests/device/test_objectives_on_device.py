"""What the trainer promises to every objective, on an accelerator: precision, resuming, compiled code, memory."""

import copy

import pytest
import torch

from contracts import toys
from contracts.reduced_objectives import CLASSES, NOW, OBJECTIVES
from contracts.reduced_objectives import a_batch as empty_batch
from contracts.test_objectives import NAMES, StopAfter, last_state
from device.machine import CLOSE, DEVICE, PRECISIONS, apart, cast, marks, never_waiting, only, require
from paucal.data.views.augmentation import Mixing
from paucal.losses.lejepa import unit_directions
from paucal.training import Hardware, largest_batch
from paucal.types import Batch, Progress, UserError
from training.test_module import Poisoned, Weights

pytestmark = marks()
each = pytest.mark.parametrize("name", NAMES)
every = pytest.mark.parametrize("name", OBJECTIVES)
precisely = pytest.mark.parametrize("precision", PRECISIONS)
SCALE = 1024  # float16 has no small gradients,
SCALES = {"self_distillation": 8, "mixed_self_distillation": 8}  # and no large ones
# A few steps of AdamW carry what was rounded differently further apart: it divides by the size of the gradient.
DRIFT = {"32-true": 5e-3, "bf16-mixed": 5e-2, "16-mixed": 5e-2}


def hardware(precision: str, compiled: bool = False) -> Hardware:
    return Hardware(accelerator=DEVICE, precision=precision, compile_backend="inductor" if compiled else None)


def a_batch(objective, n: int = 4) -> Batch:
    batch, draw = empty_batch(objective, "cpu", n), torch.Generator().manual_seed(1)
    batch.ids, batch.labels = torch.arange(n), torch.arange(n) % CLASSES
    batch.views = [torch.randn(view.shape, generator=draw) for view in batch.views]
    batch.geometry = [torch.eye(2, 3).expand(n, 2, 3) for _ in batch.views]
    batch.label_maps["classes"] = torch.arange(4).expand(n, 4).clone()
    return batch


def states(folder):
    kept = last_state(folder)
    return [*kept["state_dict"].values(), *kept["callbacks"]["MovingAverage"]["average"].values()]


def together(values) -> torch.Tensor:
    return torch.cat([value.cpu().double().flatten() for value in values])


def same_directions(monkeypatch) -> None:
    """Draw LeJEPA's directions on the CPU: a device draws others."""

    def drawn(dim, count, generator):
        here = torch.Generator().manual_seed(generator.initial_seed())
        return unit_directions(dim, count, here).to(generator.device, non_blocking=True)

    monkeypatch.setattr("paucal.objectives.one_network.unit_directions", drawn)


@every
@precisely
def test_losses__and_gradients_are_those_of_the_cpu(name, precision, monkeypatch):
    require(precision)
    if name == "mixed_self_distillation":
        monkeypatch.setattr("paucal.objectives.self_distillation.mix_crops", lambda crops, _: (crops, torch.ones(4)))
    torch.manual_seed(0)
    objective = OBJECTIVES[name]().eval()
    other, batch = copy.deepcopy(objective).to(DEVICE), a_batch(objective)
    pairs = torch.zeros(4, 4, 2, 2, dtype=torch.long)  # a device draws others than the CPU
    pairs[:, :, 1] = torch.arange(2)
    drawn = {kind: pairs.to(kind) for kind in ("cpu", DEVICE)}
    monkeypatch.setattr("paucal.objectives.drloc.draw_pairs", lambda *_, generator: drawn[generator.device.type])
    same_directions(monkeypatch)
    expected, scale = objective(batch, NOW), SCALES.get(name, SCALE)
    (scale * expected.total).backward()
    there = batch.to(DEVICE)
    with cast(precision), never_waiting():
        found = other(there, NOW)
        total = scale * found.total
    with never_waiting():
        total.backward()
    for loss, value in expected.values.items():
        assert apart(value, found.values[loss]) < CLOSE[precision], loss
    ours, theirs = ([p.grad for p in one.parameters() if p.grad is not None] for one in (objective, other))
    assert apart(together(ours), together(theirs)) < 5 * CLOSE[precision]


@every
def test_step__never_makes_the_cpu_wait(name):
    objective = OBJECTIVES[name]().train().to(DEVICE)
    batch = a_batch(objective).to(DEVICE)
    for number in range(2):  # the first may fill caches of the libraries
        with never_waiting():
            now = Progress(number, 10, 5, number)
            objective(batch, now).total.backward()
            objective.before_step(now)
            objective.after_step(Progress(number + 1, 10, 5, number))
            objective.diagnostics()


def test_mixing__never_makes_the_cpu_wait():
    objective = OBJECTIVES["supervised"]()
    batch = a_batch(objective).to(DEVICE)
    batch.label_maps = None
    for mixing in (Mixing(0.8, 0.0), Mixing(0.0, 1.0)):
        with never_waiting():
            mixed = mixing.mix(batch, CLASSES)
        assert mixed.labels.shape == (4, CLASSES)
        assert mixed.labels.device.type == mixed.views[0].device.type == DEVICE


@each
@precisely
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_training__goes_on_after_a_stop_as_if_there_had_been_none(name, precision, compiled, tmp_path):
    require(precision)
    torch.compiler.reset()
    where = hardware(precision, compiled)
    whole = toys.train(toys.make(name), tmp_path / "whole", hardware=where)
    toys.train(toys.make(name), tmp_path / "parts", hardware=where, callbacks=[StopAfter(6)])
    parts = toys.train(toys.make(name, seed=99), tmp_path / "parts", hardware=where, workers=2)
    assert whole.finished
    assert parts.finished
    assert len(parts.rows) == 3
    for one, other in zip(whole.rows, parts.rows, strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=DRIFT[precision])
        assert one["skipped_steps"] == other["skipped_steps"]
    assert apart(together(states(tmp_path / "whole")), together(states(tmp_path / "parts"))) < DRIFT[precision]


@each
def test_training__has_the_losses_of_the_cpu(name, tmp_path, monkeypatch):
    same_directions(monkeypatch)
    there = toys.train(toys.make(name), tmp_path / "there", hardware=hardware("32-true"), epochs=1)
    here = toys.train(toys.make(name), tmp_path / "here", epochs=1)
    for column, value in here.rows[0].items():
        if column.startswith("train_"):
            assert there.rows[0][column] == pytest.approx(value, rel=1e-2), column


@each
def test_state__of_the_device_goes_on_on_the_cpu(name, tmp_path):
    assert not toys.train(toys.make(name), tmp_path, hardware=hardware("32-true"), callbacks=[StopAfter(6)]).finished
    assert toys.train(toys.make(name, seed=9), tmp_path).finished


@pytest.mark.parametrize(("optimizer", "lr"), [("adamw", 3e-3), ("sgd", 0.1), ("lars", 1.0)])
@precisely
def test_nonfinite_loss__skips_the_step_and_only_that(precision, optimizer, lr, tmp_path):
    require(precision)
    torch.manual_seed(0)
    weights, told = Weights(), {"hardware": hardware(precision), "optimizer": optimizer, "lr": lr}
    outcome = toys.train(Poisoned({5}), tmp_path, epochs=3, callbacks=[weights], average=None, **told)
    assert torch.equal(weights.seen[4], weights.seen[5])
    assert not torch.equal(weights.seen[5], weights.seen[6])
    assert all(torch.isfinite(seen).all() for seen in weights.seen)
    assert outcome.rows[1]["skipped_steps"] == 1


def test_largest_batch__halves_until_it_fits():
    objective = toys.make("per_block")

    def make(size: int) -> Batch:
        return Batch(torch.arange(size), [torch.rand(size, 3, toys.SIZE, toys.SIZE)], torch.arange(size) % 10)

    assert largest_batch(objective, make, [8, 4], torch.device(DEVICE)) == 8
    assert {p.device.type for p in objective.parameters()} == {"cpu"}


@only("cuda")
def test_largest_batch__survives_a_full_gpu():
    objective, before = toys.make("per_block"), torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + (400 << 20)) / total))

    def make(size: int) -> Batch:
        return Batch(torch.arange(size), [torch.rand(size, 3, toys.SIZE, toys.SIZE)], torch.arange(size) % 10)

    try:
        assert largest_batch(objective, make, [1 << 18, 64], torch.device("cuda")) == 64
        with pytest.raises(UserError, match="lower --img-size"):
            largest_batch(objective, make, [1 << 18], torch.device("cuda"))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
