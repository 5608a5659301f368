"""What `--time` counts from."""

import time

from paucal.cli import main as program
from paucal.runner.clock import command_start, count_time_from, start_time


def test_start__is_now_outside_of_a_run_and_what_was_given_inside():
    before = time.monotonic()
    assert before <= start_time() <= time.monotonic()
    with count_time_from(before - 60):
        assert start_time() == before - 60
        with count_time_from(None):  # as a run that another command makes in the same process
            assert start_time() >= before
        assert start_time() == before - 60
    assert start_time() >= before


def test_command__begins_before_anything_is_loaded_and_anew_with_each(monkeypatch):
    seen = []
    monkeypatch.setattr(program, "_dispatch", lambda _: seen.append((command_start(), time.monotonic())) or 0)
    for _ in range(2):
        before = time.monotonic()
        assert program.main(["train"]) == 0
        assert before <= seen[-1][0] <= seen[-1][1]
    assert seen[0][0] < seen[1][0]
