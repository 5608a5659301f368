"""Each optimizer against the formula of its step, and what a step does that is not finite."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from contracts import toys
from paucal.training import CosineWarmup, Optimization, Plan
from paucal.training.module import TrainingModule, undecayed_parameters
from paucal.types import Batch, Progress
from training.test_module import Poisoned, Weights

PEAK, DECAY, TOTAL, PER_EPOCH = 0.05, 0.1, 8, 2
SCHEDULE = CosineWarmup(PEAK, TOTAL, warmup=1, start=0.01)


class Naive:
    """Weights, one tensor after the other, that follow a formula."""

    def __init__(self, kind: str, weights: dict[str, Tensor], undecayed: set[str]) -> None:
        self.kind, self.undecayed = kind, undecayed
        self.weights = {name: value.detach().double().clone() for name, value in weights.items()}
        self.moments: dict[str, list[Tensor]] = {}

    def step(self, gradients: dict[str, Tensor], number: int) -> None:
        for name, gradient in gradients.items():
            head = "head" in name  # the toy's own group: twice the rate, a decay that grows from 0
            rate = SCHEDULE(number) * (2.0 if head else 1.0)
            decay = 0.0 if name in self.undecayed else DECAY * (number / TOTAL if head else 1.0)
            self.weights[name] -= rate * getattr(self, self.kind)(name, gradient.double(), decay)

    def sgd(self, name: str, gradient: Tensor, decay: float) -> Tensor:
        return self._with_momentum(name, gradient + decay * self.weights[name])

    def lars(self, name: str, gradient: Tensor, decay: float) -> Tensor:
        weight = self.weights[name]
        whole = gradient + decay * weight
        length, steepness = weight.square().sum().sqrt(), gradient.square().sum().sqrt()
        if name not in self.undecayed and length > 0 and steepness > 0:
            whole = whole * 0.001 * length / (steepness + decay * length)
        return self._with_momentum(name, whole)

    def adamw(self, name: str, gradient: Tensor, decay: float) -> Tensor:
        mean, square, count = self.moments.get(name, [0 * gradient, 0 * gradient, torch.zeros(())])
        mean, square, count = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2, count + 1
        self.moments[name] = [mean, square, count]
        root = (square / (1 - 0.999**count)).sqrt() + 1e-8
        return mean / (1 - 0.9**count) / root + decay * self.weights[name]

    def _with_momentum(self, name: str, whole: Tensor) -> Tensor:
        self.moments[name] = [whole + 0.9 * before for before in self.moments.get(name, [0 * whole])]
        return self.moments[name][0]


def views(seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    images = [torch.rand(4, 3, side, side, generator=draw) for side in (toys.SIZE, 8, 8)]
    return Batch(torch.arange(4), images)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "lars"])
def test_steps__follow_the_formula_with_the_schedules_of_rate_and_decay(kind):
    objective = toys.make("two_networks")  # holds a part still in the first epoch, whose moments begin later
    optimization = Optimization(SCHEDULE, weight_decay=DECAY, clip=None, optimizer=kind)
    module = TrainingModule(objective, optimization, Plan(TOTAL, PER_EPOCH), lambda: None)
    module._trainer = trainer = SimpleNamespace(precision_plugin=None, global_step=0, world_size=1)
    trained = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    undecayed = set(undecayed_parameters(objective)) & set(trained)
    assert {"student.model.norm.weight", "head.bias"} <= undecayed
    naive, optimizer = Naive(kind, trained, undecayed), module.configure_optimizers()
    for number in range(5):
        trainer.global_step = number
        optimizer.zero_grad()
        objective(views(number), Progress(number, TOTAL, PER_EPOCH)).total.backward()
        module.on_before_optimizer_step(optimizer)
        naive.step({name: p.grad for name, p in trained.items() if p.grad is not None}, number)
        optimizer.step()
        objective.after_step(Progress(number + 1, TOTAL, PER_EPOCH))
        for name, weight in trained.items():
            torch.testing.assert_close(weight.double(), naive.weights[name], rtol=2e-5, atol=2e-6)
    assert len(naive.moments) == len(trained) > len(undecayed)


@pytest.mark.parametrize("kind", ["sgd", "lars"])
def test_nonfinite_loss__skips_the_step_and_leaves_the_moments(kind, tmp_path):
    torch.manual_seed(0)
    weights = Weights()
    outcome = toys.train(Poisoned({0, 2}), tmp_path, epochs=1, callbacks=[weights], lr=0.3, optimizer=kind)
    assert not torch.equal(weights.seen[0], weights.seen[1])
    assert torch.equal(weights.seen[1], weights.seen[2])
    assert not torch.equal(weights.seen[2], weights.seen[3])
    assert all(torch.isfinite(seen).all() for seen in weights.seen)
    assert outcome.rows[0]["skipped_steps"] == 2
    state = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"][0]
    assert all(torch.isfinite(moments["momentum_buffer"]).all() for moments in state["state"].values())
    assert {group["momentum"] for group in state["param_groups"]} == {0.9}
