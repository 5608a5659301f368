"""The time of a run in its folder, and a run whose length was corrected: what is said, stored and repeated."""

import json
import time
from dataclasses import asdict, replace

import pytest
import torch
from lightning.pytorch import Callback

from cli.calls import make_photos
from paucal.methods.training_settings import TrainSettings
from paucal.runner import time_budget
from paucal.runner.console import RecordingConsole, SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.runner.time_budget import (
    OVERHEAD_FACTOR,
    TIME_PLAN_FILE,
    add_time_plan,
    describe_change,
    seconds_per_step,
    store_length,
)
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights
from paucal.tasks.classification.auto_tune import auto_tune
from paucal.tasks.classification.job import TrainingJob
from paucal.training import Plan, PlanChange, TimePlan
from paucal.training.length_correction import RunClock
from paucal.training.timed_steps import timed_steps
from paucal.types import Batch, LossTerms, UserError

TIME = TimePlan(budget=300.0, spent=20.0, closing=9.5, step=0.25, evaluation=2.0, most_steps=4000, threads=2)


def test_time_plan__comes_back_from_the_folder_with_the_seconds_since(tmp_path):
    run, plan = RunFolder(tmp_path), Plan(100, 10)
    assert add_time_plan(run, plan, time.monotonic()) is plan
    store_length(run, TIME, "10 epochs", 250.0, SilentConsole())
    assert json.loads((tmp_path / TIME_PLAN_FILE).read_text()) == asdict(TIME)
    found = add_time_plan(run, plan, time.monotonic() - 7)
    assert found.time is not None
    assert found.time.spent == pytest.approx(27, abs=1)
    assert replace(found, time=None) == plan
    assert replace(found.time, spent=20.0) == TIME
    assert (found.most_steps, found.corrected_total_steps, found.threads) == (4000, 100, 2)


@pytest.mark.parametrize("text", ["{}", "[]", '{"budget": "long"}', "", json.dumps({**asdict(TIME), "more": 1})])
def test_time_plan__that_is_damaged_is_refused(text, tmp_path):
    (tmp_path / TIME_PLAN_FILE).write_text(text)
    with pytest.raises(UserError, match=TIME_PLAN_FILE):
        add_time_plan(RunFolder(tmp_path), Plan(100, 10), 0.0)


def test_change_line__says_what_a_step_takes_and_how_many_there_are():
    plan = Plan(100, 10, time=TIME, changes=(PlanChange(40, 70, 2),))
    assert describe_change(plan, 0.5123) == (
        "plan: a step takes 0.51 s now (0.25 s when the length was planned): the run has 70 steps instead of 100, "
        "to keep the time budget"
    )
    plan = replace(plan, changes=(*plan.changes, PlanChange(50, 70, 1)))
    assert describe_change(plan, 0.5) == "plan: 1 thread from step 50 on, which is faster now"


def test_tried_steps__leave_no_trace():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(1)
    with timed_steps(module, torch.device("cpu")):
        module(torch.randn(4, 3)).sum().backward()
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_seconds_per_step__leave_out_the_first_pass_and_count_what_a_timed_step_lacks(monkeypatch):
    clock = iter([0.0, 100.0, 102.0, 106.0])
    monkeypatch.setattr(time_budget.time, "perf_counter", lambda: next(clock))

    class Passes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, batch, progress):
            return LossTerms({"loss": self.weight * 2}, {"loss": 1.0})

    batches = [Batch(torch.zeros(1, dtype=torch.int64), []) for _ in range(3)]
    seconds = seconds_per_step(Passes(), batches, torch.device("cpu"), "32-true", accumulate=2)  # type: ignore[arg-type]
    assert seconds == pytest.approx(OVERHEAD_FACTOR * 2 * (2.0 + 4.0) / 2)


class StopAt(Callback):
    """Stops a run as a signal does, after a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step + 1 == self.step:
            next(one for one in trainer.callbacks if hasattr(one, "received")).received = True


@pytest.fixture
def at_the_fifth_step(monkeypatch):
    """Let steps be planned to take two seconds, and correct the length after the fifth, wherever a run stands."""

    def find_change(clock, trainer, module, batch):
        step, plan = trainer.global_step, module.plan
        return PlanChange(5, 12, 1) if step == 5 and not plan.changes else None

    monkeypatch.setattr(RunClock, "_find_change", find_change)
    monkeypatch.setattr(auto_tune, "measure_seconds_per_image", lambda made, choose_threads: 0.01)


SETTINGS = {
    **{"time": "5m", "init": "none", "model": "vit_mini", "model_args": ["depth=1"], "device": "cpu"},
    **{"batch_size": 8, "img_size": [16], "workers": 0, "method": "supervised", "seed": 3},
}


def started(output, console, callbacks=()):
    photos = output.parent / "photos"
    data = photos if photos.exists() else make_photos(photos, each=12)
    given = {**SETTINGS, "data": str(data), "output": str(output)}
    return begin(TrainingJob(), TrainSettings(**given), dict.fromkeys(given, "flag"), console, callbacks)


@pytest.mark.usefixtures("at_the_fifth_step")
def test_run__that_goes_on_after_a_change_ends_as_one_that_was_not_stopped(tmp_path):
    console = RecordingConsole()
    whole = started(tmp_path / "whole", console)
    assert sum("12 steps instead of" in line for line in console.said) == 1
    for stop_at in (5, 8):
        run = tmp_path / f"stopped-{stop_at}"
        stopped = started(run, SilentConsole(), [StopAt(stop_at)])
        assert isinstance(stopped, Stopped)
        assert (stopped.step, stopped.total_steps) == (stop_at, 12)
        assert f"after step {stop_at} of 12" in str(stopped)
        resumed = resume(TrainingJob(), run, SilentConsole())
        one, two = (read_weights(RunFolder(result.folder).weights) for result in (whole, resumed))
        assert all(torch.equal(value, two[name]) for name, value in one.items())
        assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in whole.history]
    summary = json.loads((whole.folder / "summary.json").read_text())
    per_epoch = whole.history[0]["step"]
    assert whole.history[-1]["step"] == 12
    assert summary["epochs"] == round(12 / per_epoch, 2) < RunFolder(whole.folder).settings["epochs"]
    assert any("made 12 steps instead of" in line for line in summary["remarks"])
    assert whole.history[-1]["epoch"] == summary["best_epoch"] == summary["epochs"]  # with two decimals
    assert any(f"epochs: {summary['epochs']}, " in line for line in console.said)
