"""Single properties of a step that the contract tests do not see."""

import copy
import errno
import logging
import os
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from contracts import toys
from paucal.runs import RunFolder
from paucal.training import CosineWarmup, Optimization, Plan, PlanChange, Validation, checkpoint_step
from paucal.training.averaging import MovingAverage
from paucal.training.keeper import RunHooks, RunKeeper
from paucal.training.meters import Meters, SkippedStepCheck
from paucal.training.module import TrainingModule, clip_gradients
from paucal.training.stopping import StopSignal
from paucal.types import Batch, LossTerms, Progress, UserError


def a_batch() -> Batch:
    images = torch.rand(4, 3, toys.SIZE, toys.SIZE, generator=torch.Generator().manual_seed(1))
    return Batch(torch.arange(4), [images], torch.arange(4))


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


def test_nonfinite_loss__takes_the_gradients_away_where_the_optimizer_does_not_look(tmp_path, monkeypatch):
    class Left(Callback):
        """Notes in which steps the optimizer was given gradients."""

        def __init__(self):
            self.steps = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.steps.append(any(p.grad is not None for p in pl_module.parameters()))

    monkeypatch.setattr("paucal.training.module.DEVICES_IGNORING_FOUND_INF", ("cpu",))
    torch.manual_seed(0)
    weights, left = Weights(), Left()
    outcome = toys.train(Poisoned({1}), tmp_path, epochs=1, callbacks=[weights, left])
    assert left.steps == [True, False, True, True]
    assert torch.equal(weights.seen[0], weights.seen[1])
    assert outcome.rows[0]["skipped_steps"] == 1
    steps = {int(state["step"]) for state in _moments(tmp_path)}
    assert steps == {3}


def _moments(folder):
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return state["optimizer_states"][0]["state"].values()


def test_batch__is_moved_without_waiting_for_the_step_before():
    asked = []

    class Watched(Batch):
        def to(self, device, non_blocking=False):
            asked.append((device, non_blocking))
            return self

    trained = TrainingModule(
        toys.make("per_block"), Optimization(lambda step: 0.0, 0.05, 5.0), Plan(4, 4), lambda: None
    )
    batch = Watched(torch.arange(2), [])
    assert trained.transfer_batch_to_device(batch, torch.device("cuda"), 0) is batch
    assert asked == [(torch.device("cuda"), True)]


def test_nonfinite_loss__for_ever_ends_the_run_and_names_the_culprit(tmp_path):
    torch.manual_seed(0)
    with pytest.raises(UserError, match=r"non-finite losses: 'block1'.*--lr"):
        toys.train(Poisoned(range(10_000)), tmp_path, epochs=60, batch=2)


def test_interrupt__finishes_the_step_saves_and_goes_on(tmp_path):
    class Interrupt(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 2:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    outcome = toys.train(toys.make("per_block"), tmp_path, callbacks=[Interrupt()])
    assert not outcome.finished
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint_step(tmp_path / "checkpoints" / "last.ckpt") == 3
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
    validation = Validation(validate, "score", "cost")
    outcome = toys.train(objective, tmp_path, epochs=4, average=None, validation=validation, callbacks=[epochs])
    assert outcome.best["epoch"] == 3
    assert checkpoint_step(tmp_path / "checkpoints" / "best.ckpt") == 12
    saved = torch.load(tmp_path / "deployed.pt", weights_only=True)
    matches = [all(torch.equal(saved[name], state[name]) for name in saved) for state in epochs.states]
    assert matches == [False, False, True]


class Crash(Callback):
    """Ends the run before a step, as a power cut would."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == self.step:
            raise InterruptedError


class FirstRows(Callback):
    """What the run folder tells when training goes on."""

    rows = None

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rows = RunFolder(self.folder).read_rows() if self.rows is None else self.rows

    def __init__(self, folder):
        self.folder = folder


@pytest.mark.parametrize(("save_every", "kept"), [(3, [4]), (500, [])])
def test_killed_run__forgets_the_epochs_that_it_makes_again(save_every, kept, tmp_path):
    with pytest.raises(InterruptedError):  # after two epochs of four steps
        toys.train(toys.make("per_block"), tmp_path, save_every=save_every, callbacks=[Crash(8)])
    assert [row["step"] for row in RunFolder(tmp_path).read_rows()] == [4, 8]
    assert (tmp_path / "checkpoints" / "last.ckpt").exists() == (save_every == 3)
    first = FirstRows(tmp_path)
    toys.train(toys.make("per_block"), tmp_path, save_every=save_every, callbacks=[first])
    assert [row["step"] for row in first.rows] == kept
    assert [row["step"] for row in RunFolder(tmp_path).read_rows()] == [4, 8, 12]


def test_killed_run__knows_which_epoch_its_best_model_is_of(tmp_path):
    """Where an epoch that is made again scores otherwise, as on a GPU, the files are still those of the better one."""
    scores = iter([0.5, 0.9, 0.6, 0.7])

    def validate(module, device):
        return {"score": next(scores), "cost": 0.0}

    validation = Validation(validate, "score", "cost")
    with pytest.raises(InterruptedError):
        toys.train(toys.make("per_block"), tmp_path, save_every=3, validation=validation, callbacks=[Crash(8)])
    model = (tmp_path / "deployed.pt").read_bytes()
    outcome = toys.train(toys.make("per_block"), tmp_path, save_every=3, validation=validation)
    assert [row["score"] for row in outcome.rows] == [0.5, 0.6, 0.7]
    assert (outcome.best["epoch"], outcome.best["score"]) == (2, 0.9)
    assert (tmp_path / "deployed.pt").read_bytes() == model
    assert checkpoint_step(tmp_path / "checkpoints" / "best.ckpt") == 8


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
    keeper = RunKeeper(RunHooks(None, None), None, StopSignal(), SkippedStepCheck())
    keeper.best = {"epoch": 3}
    assert keeper._improves({"epoch": 4})


@pytest.mark.parametrize(("step", "expected"), [(0, [{"val_knn": 0.5}]), (3, [])])
def test_keeper__judges_the_weights_a_run_begins_with_where_they_are_trained(step, expected, tmp_path):
    asked, kept, module = [], [], nn.Linear(1, 1)

    def validate(judged, device):
        asked.append((judged, device))
        return {"val_knn": 0.5}

    hooks = RunHooks(RunFolder(tmp_path), None, Validation(validate), on_start=kept.append)
    keeper = RunKeeper(hooks, lambda: nullcontext(module), StopSignal(), SkippedStepCheck())
    keeper.step = step
    device = torch.device("meta")  # where nothing but the training module could have it from
    keeper.on_train_start(SimpleNamespace(is_global_zero=True), SimpleNamespace(device=device))
    assert kept == expected
    assert asked == [(module, device)] * len(expected)


def test_unused_parameters__are_named(tmp_path, caplog):
    torch.manual_seed(0)
    objective = toys.make("per_block")
    objective.spare = nn.Linear(2, 2)
    with caplog.at_level(logging.WARNING, logger="paucal"):
        toys.train(objective, tmp_path, epochs=1)
    said = [record.getMessage() for record in caplog.records if "no gradient reaches" in record.getMessage()]
    assert len(said) == 1
    assert "no gradient reaches 2 trainable parameters (spare.weight, spare.bias" in said[0]


@pytest.mark.parametrize("kind", ["adamw", "sgd", "lars"])
def test_scaler__is_taken_out_once_and_before_clipping(kind, tmp_path):
    """With scaled gradients and a scaler a step gives the weights of one without either."""

    def one_step(scale: float | None) -> tuple[nn.Parameter, float]:
        torch.manual_seed(0)
        objective = toys.make("per_block")
        optimization = Optimization(CosineWarmup(1e-2, 10), 0.05, clip=0.5, optimizer=kind)
        module = TrainingModule(objective, optimization, Plan(10, 10), lambda: None)
        scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        plugin = SimpleNamespace(scaler=scaler)
        module._trainer = SimpleNamespace(precision_plugin=plugin, global_step=0, world_size=1)
        optimizer = module.configure_optimizers()
        loss = objective(a_batch(), Progress(0, 10, 10)).total
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None and kind != "adamw":
            scaler.unscale_(optimizer)  # as Lightning does for what is not fused; a second time is an error
        module.on_before_optimizer_step(optimizer)
        optimizer.step() if scaler is None else scaler.step(optimizer)
        return next(objective.parameters()), module.meters.read()["gradient_norm"]

    plain, norm = one_step(None)
    scaled, same_norm = one_step(4096.0)
    torch.testing.assert_close(scaled, plain)
    assert norm == pytest.approx(same_norm, rel=1e-5)


def test_meters__leave_values_that_are_not_finite_out_of_means():
    meters = Meters()
    for value in (2.0, float("nan"), 4.0):
        loss = torch.tensor(value)
        meters.add(LossTerms({"class": loss}), loss)
    assert meters.read()["train_class"] == 3.0
    again = Meters()
    again.load_state_dict(meters.state_dict(), torch.device("cpu"))
    assert again.read()["train_class"] == 3.0
    assert again.newest_mean("train_loss") == 3.0
    meters.reset()
    meters.add(LossTerms({"class": torch.tensor(float("nan"))}), torch.tensor(float("nan")))
    assert meters.read()["train_class"] != meters.read()["train_class"]


def test_health__remembers_old_skips_when_a_run_goes_on():
    meters = SimpleNamespace(skipped=65.0, rate=1e-3, nonfinite_losses=lambda: ["class"])
    module = SimpleNamespace(plan=Plan(1000, 10), meters=meters)
    before, after = SkippedStepCheck(), SkippedStepCheck()
    before.on_train_batch_end(SimpleNamespace(global_step=500), module, None, None, 499)
    after.load_state_dict(before.state_dict())
    meters.skipped = 67.0
    after.on_train_batch_end(SimpleNamespace(global_step=550), module, None, None, 549)  # two of fifty: a warning
    meters.skipped = 117.0
    assert after.stop_message is None
    after.on_train_batch_end(SimpleNamespace(global_step=600), module, None, None, 599)
    assert "the last 50 steps were all skipped" in after.stop_message
    assert after.state_key == "FiniteWatch"  # in the checkpoints of stored runs


@pytest.mark.parametrize("last_step", [30, 150])
def test_health__knows_the_length_that_the_clock_gave_a_run(last_step):
    meters = SimpleNamespace(skipped=0.0, rate=1e-3, nonfinite_losses=lambda: ["class"])
    module = SimpleNamespace(plan=Plan(100, 10, changes=(PlanChange(20, last_step, threads=1),)), meters=meters)
    health = SkippedStepCheck()
    for step in range(1, last_step + 1):
        meters.skipped += step > last_step - 50
        health.on_train_batch_end(SimpleNamespace(global_step=step), module, None, None, step - 1)
    assert f"the last {min(50, last_step)} steps were all skipped" in str(health.stop_message)


def test_health__speaks_up_at_the_end_of_a_short_run(tmp_path):
    torch.manual_seed(0)
    with pytest.raises(UserError, match=r"the last 8 steps were all skipped .*'block1'"):
        toys.train(Poisoned(range(8)), tmp_path, epochs=2)


def test_skipped_last_step__is_no_reason_to_lose_the_run(tmp_path, caplog):
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING, logger="paucal"):
        # 51 steps, the last after a look at 50.
        outcome = toys.train(Poisoned({50}), tmp_path, epochs=17, batch=2, images=6)
    assert outcome.finished
    assert [row["skipped_steps"] for row in outcome.rows] == [0] * 16 + [1]
    assert checkpoint_step(tmp_path / "checkpoints" / "last.ckpt") == 51
    assert (tmp_path / "deployed.pt").exists()
    assert "the last step was skipped" in caplog.text


def test_hopeless_run__is_saved_before_it_ends(tmp_path):
    torch.manual_seed(0)
    objective = Poisoned(range(10, 10_000))
    with pytest.raises(UserError, match=r"the last 50 steps were all skipped .*still contains the earlier weights"):
        toys.train(objective, tmp_path, epochs=25, batch=2, average=None)  # of 4 steps
    assert checkpoint_step(tmp_path / "checkpoints" / "last.ckpt") == 100
    assert [row["step"] for row in RunFolder(tmp_path).read_rows()] == list(range(4, 101, 4))
    saved = torch.load(tmp_path / "deployed.pt", weights_only=True)
    assert all(torch.equal(saved[name], value) for name, value in objective.deployable().state_dict().items())


def test_resume__refuses_the_state_of_another_model(tmp_path):
    toys.train(toys.make("per_block"), tmp_path, epochs=1)
    with pytest.raises(UserError, match="contains the weights of another model"):
        toys.train(toys.make("two_networks"), tmp_path, epochs=2)


def test_resume__refuses_a_file_that_is_no_state(tmp_path):
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(UserError, match="is not a checkpoint of this version"):
        checkpoint_step(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged"):
        checkpoint_step(path)


def test_full_disk__leaves_the_state_before(tmp_path, monkeypatch):
    toys.train(toys.make("per_block"), tmp_path, epochs=1)
    last = tmp_path / "checkpoints" / "last.ckpt"
    before = last.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        toys.train(toys.make("per_block"), tmp_path, epochs=2)
    assert last.read_bytes() == before
    assert [p.name for p in last.parent.iterdir() if p.suffix == ".tmp"] == []
