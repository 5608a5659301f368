"""What a run does about a collapse: stop, warn, go back."""

from functools import partial

import pytest
import yaml
from lightning.pytorch import Callback

from paucal.evaluation.collapse import Verdict
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.self_distillation import settings_after_collapse as gentler
from paucal.runner import life
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, resume
from paucal.runs import RunFolder
from paucal.tasks.pretraining import assembly
from paucal.tasks.pretraining.job import PretrainingJob
from paucal.training import Plan, checkpoint_step
from tasks.pretraining.short_runs import StopAfter, start, summary_of


def sick_at(epoch, times):
    """A judge that finds a collapse at an epoch, so many times."""
    left = [times]

    def judge(rows, *_, **__):
        if rows and len(rows) >= epoch and left[0]:
            left[0] -= 1
            return Verdict("uniform output", "uniform output: all alike.", "lower the temperature.")
        return None

    return judge


def test_stop__ends_a_collapsed_run_and_says_why(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.methods.self_distillation.find_collapse", sick_at(2, 9))
    stopped = start(pictures, tmp_path / "run", on_collapse="stop")
    assert isinstance(stopped, Stopped)
    assert stopped.step == 6
    log = (stopped.run / "train.log").read_text()
    assert "stopped because of uniform output: all alike." in log
    assert "lower the temperature." in log


def test_replayed_epoch__is_judged_once(pictures, tmp_path, monkeypatch):
    """A run that is killed after an epoch that was not saved yet makes it again; it is no second sign of a collapse."""

    class Crash(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 7:
                raise InterruptedError

    def judge(rows, *_, **__):
        epochs = [row["epoch"] for row in rows]
        return Verdict("uniform output", "twice.", "none.") if len(epochs) > len(set(epochs)) else None

    monkeypatch.setattr("paucal.methods.self_distillation.find_collapse", judge)
    monkeypatch.setattr("paucal.runner.trainer_plan.Plan", partial(Plan, save_every=4))
    with pytest.raises(InterruptedError):
        start(pictures, tmp_path / "run", on_collapse="stop", callbacks=[Crash()])
    run = RunFolder(tmp_path / "run")
    assert checkpoint_step(run.last) == 4
    assert [row["step"] for row in run.read_rows()] == [3, 6]  # the second epoch ends after the newest saved state
    result = resume(PretrainingJob(), run.path, SilentConsole())
    assert not isinstance(result, Stopped)
    assert result.verdict is None
    assert [row["epoch"] for row in run.read_rows()] == [1, 2, 3, 4]


def test_warn__goes_on_and_the_report_says_it(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.methods.self_distillation.find_collapse", sick_at(2, 99))
    result = start(pictures, tmp_path / "run")
    assert result.verdict.kind == "uniform output"
    assert "uniform output" in (result.run / "report.html").read_text()


def test_monitor__first_looks_when_the_run_trains_and_the_page_tells_what_it_saw(pictures, tmp_path, monkeypatch):
    """Before, the processes are not joined and the weights lie on the CPU."""
    fitting, looks, fit = [], [], life.fit

    def monitor(module, device):
        looks.append(bool(fitting))
        return {"val_knn": len(looks) / 8}

    def noted(*arguments):
        fitting.append(True)
        return fit(*arguments)

    monkeypatch.setattr(assembly, "open_monitor", lambda settings, card: monitor)
    monkeypatch.setattr(life, "fit", noted)
    result = start(pictures, tmp_path / "run", epochs=2, region_after=1)
    assert looks == [True] * 3  # at the beginning and after each epoch, not again when the region task joins
    assert (summary_of(result.run)["knn_start"], summary_of(result.run)["knn_end"]) == (0.125, 0.375)
    assert [row["val_knn"] for row in RunFolder(result.run).read_rows()] == [0.25, 0.375]


def test_rollback__goes_back_changes_the_settings_and_finishes(pictures, tmp_path, monkeypatch):
    # A healthy row is judged twice, for a verdict and for first signs; the third epoch is sick, and only once.
    monkeypatch.setattr("paucal.methods.self_distillation.find_collapse", sick_at(3, 1))
    monkeypatch.setattr("paucal.runner.trainer_plan.Plan", partial(Plan, save_seconds=0.0))
    result = start(pictures, tmp_path / "run", on_collapse="rollback", lr=1e-3, momentum=0.99)
    config = yaml.safe_load((result.run / "config.yaml").read_text())
    settings, origin = config["settings"], config["origin"]
    assert config["rollbacks"] == [{"epoch": 3.0, "kind": "uniform output", "sentence": "uniform output: all alike."}]
    assert (settings["lr"], settings["teacher_temperature"]) == (1e-3, pytest.approx(0.03))
    assert origin["teacher_temperature"] == "rollback 1, after uniform output"
    assert [row["epoch"] for row in RunFolder(result.run).read_rows()] == [1, 2, 3, 4]
    assert "back to the last healthy state" in (result.run / "train.log").read_text()
    assert summary_of(result.run)["verdicts"][0]["kind"] == "uniform output"
    assert summary_of(result.run)["rollbacks"] == 1


def test_signal__in_the_epoch_of_a_new_stage_stops_the_run(pictures, tmp_path):
    stopped = start(pictures, tmp_path / "run", epochs=2, region_after=1, callbacks=[StopAfter(3)])
    assert isinstance(stopped, Stopped)
    assert stopped.step == 3
    result = resume(PretrainingJob(), stopped.run, SilentConsole())
    assert [row["epoch"] for row in RunFolder(result.run).read_rows()] == [1, 2]


def test_signal__in_the_epoch_of_a_rollback_stops_the_run_after_it(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.methods.self_distillation.find_collapse", sick_at(3, 1))
    monkeypatch.setattr("paucal.runner.trainer_plan.Plan", partial(Plan, save_seconds=0.0))
    stopped = start(pictures, tmp_path / "run", on_collapse="rollback", callbacks=[StopAfter(9)])
    assert isinstance(stopped, Stopped)
    assert stopped.step == 3  # of the healthy state
    log = (stopped.run / "train.log").read_text()
    assert "back to the last healthy state" in log
    assert "stopped because" not in log
    result = resume(PretrainingJob(), stopped.run, SilentConsole())
    assert [row["epoch"] for row in RunFolder(result.run).read_rows()] == [1, 2, 3, 4]
    assert summary_of(result.run)["rollbacks"] == 1


@pytest.mark.slow
def test_rollback__goes_back_a_second_time(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.methods.self_distillation.find_collapse", sick_at(3, 2))
    monkeypatch.setattr("paucal.runner.trainer_plan.Plan", partial(Plan, save_seconds=0.0))
    result = start(pictures, tmp_path / "run", on_collapse="rollback", teacher_temperature=0.04)
    config = yaml.safe_load((result.run / "config.yaml").read_text())
    assert [found["epoch"] for found in config["rollbacks"]] == [3.0, 3.0]
    assert config["origin"]["teacher_temperature"] == "rollback 2, after uniform output"
    assert [row["epoch"] for row in RunFolder(result.run).read_rows()] == [1, 2, 3, 4]


def test_interruption__is_not_put_down_to_a_collapse_that_was_only_warned_of(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.methods.self_distillation.find_collapse", sick_at(1, 99))
    stopped = start(pictures, tmp_path / "run", callbacks=[StopAfter(7)])
    assert isinstance(stopped, Stopped)
    assert "stopped because" not in (stopped.run / "train.log").read_text()


def test_rollback__pulls_away_from_what_was_found():
    settings = PretrainSettings(lr=1e-3, momentum=0.99, teacher_temperature=0.04)
    assert gentler(settings, "uniform output")["teacher_temperature"] < 0.04
    constant = gentler(settings, "constant output")
    assert constant["teacher_temperature"] > 0.04
    for changes in (constant, gentler(settings, "divergence")):
        assert (changes["lr"], changes["momentum"]) == (5e-4, pytest.approx(0.995))
