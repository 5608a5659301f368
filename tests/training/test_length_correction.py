"""A run that has a time keeps it, whatever steps take: its length is corrected, and a run that goes on repeats that."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback

from contracts import toys
from paucal.runs.weights import load_checkpoint
from paucal.training import CosineWarmup, Plan, PlanChange, TimePlan, Validation, keeper, length_correction
from paucal.training.keeper import checkpoint_changes

EVALUATION, CLOSING, SPENT = 0.5, 3.0, 5.0  # seconds
PER_EPOCH = 4


def timed(budget, most=10_000):
    return TimePlan(budget, SPENT, CLOSING, 1.0, EVALUATION, most, threads=1)


def planned(budget):
    """Return the epochs that fit in a time with steps of a second."""
    return int((budget - SPENT - CLOSING) / (PER_EPOCH + EVALUATION))


def load_between(begin, end, slow=2.0):
    return lambda now: slow if begin <= now < end else 1.0


class Times:
    """Stands for the module `time`."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in (keeper, length_correction):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self):
        return self.now


def simulated(times, seconds, budget, most=10_000):
    """Make the steps of a run without computing any; return its plan, and when it ended."""
    times.now = SPENT
    trainer = SimpleNamespace(
        global_step=0,
        world_size=1,
        is_global_zero=True,
        strategy=SimpleNamespace(broadcast=lambda value: value),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(max_steps=None)),
    )
    module = SimpleNamespace(plan=Plan(planned(budget) * PER_EPOCH, PER_EPOCH, time=timed(budget, most)))
    module.device = torch.device("meta")  # whose threads nobody chooses
    kept = length_correction.RunClock(module.plan)
    kept.start(0.0)
    while trainer.global_step < module.plan.corrected_total_steps:
        times.now += seconds(times.now)
        trainer.global_step += 1
        changed = kept.correct(trainer, module, None)
        assert changed == (trainer.fit_loop.epoch_loop.max_steps is not None)
        assert not changed or module.plan.changes[-1].step == trainer.global_step
        trainer.fit_loop.epoch_loop.max_steps = None
        if trainer.global_step % PER_EPOCH == 0 or trainer.global_step >= module.plan.corrected_total_steps:
            times.now += EVALUATION * seconds(times.now)
            kept.skip_pause(EVALUATION * seconds(times.now))
    return module.plan, times.now + CLOSING * seconds(times.now)


@pytest.mark.parametrize("budget", [100.0, 300.0, 900.0])
@pytest.mark.parametrize(
    "seconds",
    [
        lambda now: 1.0,
        lambda now: 2.0,
        lambda now: 0.6,
        load_between(60, 1e9),
        load_between(0, 60),
        load_between(40, 90, slow=3.0),
        lambda now: 2.5 if now // 20 % 2 else 1.0,  # it comes and goes
        lambda now: 0.8 + 0.4 * ((7 * now) % 1),
    ],
)
def test_run__ends_within_a_tenth_of_its_time(seconds, budget, monkeypatch):
    plan, end = simulated(Times(monkeypatch), seconds, budget)
    assert 0.9 * budget <= end <= 1.05 * budget
    assert len(plan.changes) <= 25


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.floats(5, 200), st.floats(0.3, 5.0)), min_size=1, max_size=6), st.floats(100, 2000))
@example([(123.0, 2.5), (122.0, 3.5), (5.0, 0.3125)], 311.0)  # eleven times faster in the last fifth
def test_run__keeps_its_time_under_any_load(phases, budget):
    """The last step before the end may be slow, and so may be what follows it: that much is nobody's to know."""

    def seconds(now):
        for length, slow in phases:
            if now < length:
                return slow
            now -= length
        return phases[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        _, end = simulated(Times(patch), seconds, budget)
    slowest = max(slow for _, slow in phases)
    assert end <= 1.03 * budget + slowest * (CLOSING + EVALUATION + 4)
    assert end >= 0.9 * budget - slowest * (CLOSING + EVALUATION + 5)


def test_run__whose_steps_are_as_planned_is_left_alone(monkeypatch):
    plan, _ = simulated(Times(monkeypatch), lambda now: 1.0, 200.0)
    assert plan.changes == ()


def test_quicker_steps__are_made_use_of_up_to_what_helps(monkeypatch):
    for most in (1000, 120):
        plan, end = simulated(Times(monkeypatch), lambda now: 0.5, 100.0, most)
        assert planned(100.0) * PER_EPOCH < plan.corrected_total_steps <= most
        assert (plan.corrected_total_steps == most) == (most == 120)
        assert end < 100.0


class Machine(Callback):
    """A clock on which a step takes as long as a function of the time says; keeps the rates of the steps."""

    def __init__(self, monkeypatch, seconds, stop_at=None):
        self.times, self.seconds, self.stop_at = Times(monkeypatch), seconds, stop_at
        self.rates: list[float] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.times.now += self.seconds(self.times.now)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        if trainer.global_step == self.stop_at:
            raise KeyboardInterrupt

    def score(self, model, device):
        self.times.now += EVALUATION
        return {"val_size": float(sum(p.double().square().sum() for p in model.parameters())), "val_loss": 0.0}


def train(folder, machine, time, epochs, name="per_block", callbacks=(), **more):
    validation = Validation(machine.score, "val_size", "val_loss")
    objective, callbacks = toys.make(name), [machine, *callbacks]
    return toys.train(objective, folder, epochs=epochs, validation=validation, callbacks=callbacks, time=time, **more)


def test_run__without_a_time_is_left_alone(tmp_path, monkeypatch):
    outcome = train(tmp_path, Machine(monkeypatch, lambda now: 100.0), None, 3)
    assert (outcome.step, outcome.plan.changes) == (3 * PER_EPOCH, ())


def test_load_from_the_middle__shortens_the_run_and_its_cosine(tmp_path, monkeypatch):
    budget, said = 60.0, []
    machine = Machine(monkeypatch, load_between(20, 1e9))
    outcome = train(tmp_path, machine, timed(budget), planned(budget), on_change=lambda plan, pace: said.append(pace))
    total, changes = planned(budget) * PER_EPOCH, outcome.plan.changes
    assert len(changes) == len(said) >= 1
    assert outcome.step < total
    assert 15 <= changes[0].step <= 22  # a few steps after the load has come
    assert 0 < said[0] - 1 <= 1  # the mean of recent steps
    # By hand: the cosine as planned up to the first change, what is left of it over the steps that are left then.
    schedule, position, expected = CosineWarmup(3e-3, total, warmup=2, floor=3e-5), 0.0, []
    ends = {change.step: change.total_steps for change in changes}
    last = total
    for step in range(outcome.step):
        last = ends.get(step, last)
        expected.append(schedule(position))
        position += (total - position) / (last - step)
    assert machine.rates == pytest.approx(expected, rel=1e-9)
    assert position == pytest.approx(total)
    assert outcome.remarks == [
        f"a step took more or less time than planned: the run made {outcome.step} steps instead of {total}"
    ]


def test_run__that_has_no_time_left_ends_with_the_step(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, load_between(20, 1e9, slow=400.0))
    outcome = train(tmp_path, machine, timed(60.0), planned(60.0))
    assert outcome.finished
    assert outcome.step == outcome.plan.changes[-1].step
    assert outcome.rows[-1]["step"] == outcome.step
    assert (tmp_path / "deployed.pt").exists()


@pytest.mark.parametrize(
    ("name", "accumulate", "workers"), [("two_networks", 1, 0), pytest.param("geometry", 2, 2, marks=pytest.mark.slow)]
)
def test_run__stopped_after_a_change_goes_on_to_the_same_weights(name, accumulate, workers, tmp_path, monkeypatch):
    budget, batch = 65.0, 4 if accumulate > 1 else 8
    more = {"name": name, "accumulate": accumulate, "workers": workers, "batch": batch}
    load = lambda now: 1.0 if now < 20 else 2.0  # noqa: E731
    straight = Machine(monkeypatch, lambda now: load(now) / accumulate)
    whole = train(tmp_path / "straight", straight, timed(budget), planned(budget), **more)
    assert len(whole.plan.changes) >= 1
    for stop_at in (whole.plan.changes[0].step, whole.plan.changes[-1].step + 3):
        folder = tmp_path / f"stopped-{stop_at}"
        first = Machine(monkeypatch, lambda now: load(now) / accumulate, stop_at)
        with pytest.raises(KeyboardInterrupt):
            train(folder, first, timed(budget), planned(budget), save_every=1, **more)
        assert load_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == stop_at
        second = Machine(monkeypatch, lambda now: 2.0 / accumulate)
        outcome = train(folder, second, timed(budget), planned(budget), **more)
        if outcome.plan.changes != whole.plan.changes:  # it was stopped before the last correction, and made its own
            assert outcome.plan.changes[0] == whole.plan.changes[0]
            continue
        assert outcome.step == whole.step
        one, two = (load_checkpoint(run / "checkpoints" / "last.ckpt") for run in (tmp_path / "straight", folder))
        assert all(torch.equal(value, two["state_dict"][key]) for key, value in one["state_dict"].items())
        assert [row["train_loss"] for row in outcome.rows] == [row["train_loss"] for row in whole.rows]
    assert outcome.plan.changes == whole.plan.changes


def test_change__is_saved_with_its_step(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, load_between(15, 1e9))
    seen = []

    def on_change(plan, pace):
        seen.append((checkpoint_changes(tmp_path / "checkpoints" / "last.ckpt"), plan.changes))

    outcome = train(tmp_path, machine, timed(60.0), planned(60.0), on_change=on_change)
    for before, after in seen:
        assert before in ((), after[:-1])
    assert checkpoint_changes(tmp_path / "checkpoints" / "last.ckpt") == outcome.plan.changes
    assert checkpoint_changes(tmp_path / "nothing.ckpt") == ()


@st.composite
def changed_plans(draw):
    total, changes, step = draw(st.integers(1, 400)), [], 0
    last = total
    for _ in range(draw(st.integers(0, 5))):
        if last - step < 2:
            break
        step = draw(st.integers(step + 1, last - 1))
        last = draw(st.integers(step, step + 400))
        changes.append(PlanChange(step, last, 1))
    return Plan(total, 10, changes=tuple(changes))


@settings(max_examples=200, deadline=None)
@given(changed_plans())
def test_position__follows_a_simple_walk_and_ends_with_the_plan(plan):
    ends = {change.step: change.total_steps for change in plan.changes}
    last, position, walked = plan.total_steps, 0.0, [0.0]
    for step in range(plan.corrected_total_steps):
        last = ends.get(step, last)
        position += (plan.total_steps - position) / (last - step)
        walked.append(position)
    found = [plan.position(step) for step in range(plan.corrected_total_steps + 1)]
    assert found == pytest.approx(walked, rel=1e-9, abs=1e-9)
    assert (np.diff(found) >= 0).all()
    if plan.corrected_total_steps > (plan.changes[-1].step if plan.changes else 0):
        assert found[-1] == pytest.approx(plan.total_steps)
    first = plan.changes[0].step if plan.changes else plan.total_steps
    assert found[: first + 1] == list(range(first + 1))


class Threads(Callback):
    """Keeps the number of threads of every step."""

    def __init__(self):
        self.used: list[int] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.used.append(torch.get_num_threads())


def test_threads__are_tried_without_a_trace_and_recorded(tmp_path, monkeypatch):
    """Steps that are only timed change neither weights nor random numbers; the number chosen is part of the change."""
    tried, states, before = [], [], torch.get_num_threads()

    def choosing(threads, repeats):
        def choose(step):
            for _ in range(repeats):
                step()
                tried.append(threads)
            torch.set_num_threads(threads)
            return threads

        return choose

    monkeypatch.setattr(length_correction, "THREAD_TEST_FRACTION", 1.0)  # these steps are long beside the time
    load = load_between(12, 1e9, slow=1.5)
    for threads, repeats in ((1, 0), (1, 2), (2, 2)):
        folder = tmp_path / f"{threads}-{repeats}"
        monkeypatch.setattr(length_correction, "choose_threads", choosing(threads, repeats))
        seen, machine = Threads(), Machine(monkeypatch, load)
        outcome = train(folder, machine, timed(30.0), planned(30.0), name="two_networks", callbacks=[seen])
        states.append(load_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"])
    assert tried[:2] == [1, 1]
    assert 2 in tried
    first = outcome.plan.changes[0]
    assert first.threads == 2
    assert first.total_steps == planned(30.0) * PER_EPOCH  # the next looks tell how many steps fit with two threads
    assert seen.used == [1] * first.step + [2] * (outcome.step - first.step)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert torch.get_num_threads() == before
