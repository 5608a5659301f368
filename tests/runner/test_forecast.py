"""The time that a run will take, told after its first steps."""

from types import SimpleNamespace

import pytest

from paucal.runner import clock as forecast
from paucal.runner.clock import WorkForecast, end_time_text
from paucal.runner.console import RecordingConsole
from paucal.runner.progress import TrainingForecast
from paucal.training import Plan
from paucal.wording import format_duration


@pytest.mark.parametrize(
    ("step_seconds", "total", "told"), [(2.0, 102, "3 min 16 s"), (0.1, 102, None), (9.0, 11, "1 min 12 s")]
)
def test_forecast__is_the_time_of_a_step_times_those_that_are_left(monkeypatch, step_seconds, total, told):
    clock, said = [100.0], []
    monkeypatch.setattr(forecast.time, "monotonic", lambda: clock[0])
    one = TrainingForecast(said.append)
    module = SimpleNamespace(plan=Plan(total, 1))
    for step in range(1, 12):
        clock[0] += 50.0 if step == 1 else step_seconds  # the first step is no measure
        one.on_train_batch_end(SimpleNamespace(global_step=step, is_global_zero=True), module, None, None, step - 1)
    assert len(said) == (told is not None)
    if told is not None:
        assert f"about {told} of training from now, until " in said[0]


def test_forecast__leaves_the_word_to_the_first_process():
    said = []
    one = TrainingForecast(said.append)
    for step in range(1, 30):
        trainer = SimpleNamespace(global_step=step, is_global_zero=False)
        one.on_train_batch_end(trainer, SimpleNamespace(plan=Plan(10**9, 1)), None, None, step)
    assert said == []


def test_finish__names_the_day_where_it_is_another(monkeypatch):
    import time

    noon = time.mktime((2026, 3, 6, 12, 0, 0, 0, 0, -1))
    real = time.localtime
    monkeypatch.setattr(forecast.time, "time", lambda: noon)
    monkeypatch.setattr(forecast.time, "localtime", lambda *seconds: real(*(seconds or (noon,))))
    assert end_time_text(3600) == "13:00"
    assert end_time_text(86400).startswith("12:00 on ")
    assert format_duration(59.4) == "59 s"


@pytest.mark.parametrize(("each", "total", "told"), [(2.0, 100, "3 min 16 s"), (0.5, 100, None), (2.0, 20, None)])
def test_expectation__is_told_once_and_only_of_long_work(monkeypatch, each, total, told):
    clock, said = [100.0], []
    monkeypatch.setattr(forecast.time, "monotonic", lambda: clock[0])
    expect = WorkForecast("testing", said.append)
    for done in range(total + 1):
        expect(done, total)
        clock[0] += each
    assert len(said) == (told is not None)
    if told is not None:
        assert said[0].startswith(f"time: testing takes about {told} from now, until ")


def test_expectation__does_not_count_what_came_before_the_first_call(monkeypatch):
    clock, said = [100.0], []
    monkeypatch.setattr(forecast.time, "monotonic", lambda: clock[0])
    expect = WorkForecast("reading", said.append)
    clock[0] += 500.0
    for done in range(10, 100):
        expect(done, 100)
        clock[0] += 0.1
    assert not said


def test_voice__says_how_long_a_bar_will_take_where_nothing_shows_it(monkeypatch):
    clock, console = [0.0], RecordingConsole()
    monkeypatch.setattr(forecast.time, "monotonic", lambda: clock[0])
    with console.progress("evaluating") as advance:
        for done in range(1, 50):
            advance(done, 1000)
            clock[0] += 1.0
    assert len(console.said) == 1
    assert "evaluating takes about 17 min" in console.said[0]
