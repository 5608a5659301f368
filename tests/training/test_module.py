"""Single properties of a step that the contract tests do not see."""

import copy
import logging
import os
import signal

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from contracts import toys
from paucal.training import Watch, checkpoint_position
from paucal.training.average import MovingAverage
from paucal.training.keeper import Records, RunKeeper
from paucal.training.meters import Meters
from paucal.training.module import clip_gradients
from paucal.training.stopping import StopSignal
from paucal.types import LossTerms, UserError


class Poisoned(toys.PerBlock):
    """Gives a loss that is not a number in chosen forward passes."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, batch, progress):
        terms = super().forward(batch, progress)
        if progress.micro_step in self.steps:
            terms.values["block1"] = terms.values["block1"] * float("nan")
        return terms


class Weights(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(pl_module.objective.heads[0].weight.detach().clone())


def test_nonfinite_loss__skips_the_step_and_only_that(tmp_path, caplog):
    torch.manual_seed(0)
    weights = Weights()
    with caplog.at_level(logging.WARNING, logger="paucal"):
        outcome = toys.train(Poisoned({1}), tmp_path, epochs=2, callbacks=[weights])
    assert torch.equal(weights.seen[0], weights.seen[1])
    assert not torch.equal(weights.seen[1], weights.seen[2])
    assert all(torch.isfinite(w).all() for w in weights.seen)
    assert [row["skipped_steps"] for row in outcome.rows] == [1, 0]
    assert all(value == value for row in outcome.rows for value in row.values())


def test_nonfinite_loss__for_ever_ends_the_run_and_names_the_culprit(tmp_path):
    torch.manual_seed(0)
    with pytest.raises(UserError, match=r"losses concerned: 'block1'.*--lr"):
        toys.train(Poisoned(range(10_000)), tmp_path, epochs=60)


def test_interrupt__finishes_the_step_saves_and_goes_on(tmp_path):
    class Interrupt(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 2:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    outcome = toys.train(toys.make("per_block"), tmp_path, callbacks=[Interrupt()])
    assert not outcome.finished
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint_position(tmp_path / "checkpoints" / "last.ckpt") == (3, 3)
    assert toys.train(toys.make("per_block", seed=5), tmp_path).finished


def test_best__is_the_highest_score_and_ties_go_to_the_lower_loss(tmp_path):
    scores = iter([(0.5, 1.0), (0.8, 1.0), (0.8, 0.9), (0.7, 0.1)])

    def validate(module, device):
        score, loss = next(scores)
        return {"score": score, "cost": loss}

    class AfterEpochs(Callback):
        """Copies of the weights at the end of every epoch of four steps."""

        def __init__(self):
            self.states = []

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx and batch_idx % 4 == 0:
                self.states.append(copy.deepcopy(pl_module.objective.deployable().state_dict()))

    epochs = AfterEpochs()
    torch.manual_seed(0)
    objective = toys.make("per_block")
    watch = Watch(validate, "score", "cost")
    outcome = toys.train(objective, tmp_path, epochs=4, average=None, watch=watch, callbacks=[epochs])
    assert outcome.best["epoch"] == 3
    assert checkpoint_position(tmp_path / "checkpoints" / "best.ckpt") == (12, 12)
    saved = torch.load(tmp_path / "deployed.pt", weights_only=True)
    matches = [all(torch.equal(saved[name], state[name]) for name in saved) for state in epochs.states]
    assert matches == [False, False, True]


def test_clipping__scales_to_the_norm_and_reports_the_norm_before():
    layer = nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in layer.parameters()]).norm()
    unclipped = layer.weight.grad.clone()
    assert clip_gradients(layer.parameters(), None) == expected
    assert torch.equal(layer.weight.grad, unclipped)
    assert clip_gradients(layer.parameters(), 0.5) == expected
    torch.testing.assert_close(torch.cat([p.grad.flatten() for p in layer.parameters()]).norm(), torch.tensor(0.5))


def test_average__copies_integers_and_averages_the_rest():
    module = nn.BatchNorm1d(2)
    average = MovingAverage(module, 0.5)
    module.num_batches_tracked += 7
    module.running_mean += 1
    average.update()  # the first decay is 1 / 10
    assert average.module.num_batches_tracked == 7
    torch.testing.assert_close(average.module.running_mean, torch.full((2,), 0.9))
    assert not any(p.requires_grad for p in average.module.parameters())


def test_average__refuses_a_decay_that_is_none():
    with pytest.raises(ValueError, match=r"got 1\.0"):
        MovingAverage(nn.Linear(1, 1), 1.0)


def test_meters__give_means_and_survive_a_checkpoint():
    meters = Meters()
    meters.add(LossTerms({"a": torch.tensor(1.0)}, {"a": 0.5}), torch.tensor(0.5))
    restored = Meters()
    restored.load_state_dict(meters.state_dict(), torch.device("cpu"))
    restored.add(LossTerms({"a": torch.tensor(3.0)}, {"a": 0.5}), torch.tensor(1.5))
    assert restored.read() == {"train_loss": 1.0, "train_a": 2.0, "weight_a": 0.5, "lr": 0.0}


def test_keeper__without_a_watch_keeps_the_newest():
    keeper = RunKeeper(Records(None, None), None, StopSignal())
    keeper.best = {"epoch": 3}
    assert keeper._improves({"epoch": 4})
