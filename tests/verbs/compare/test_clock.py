"""How long a grid will take, with the workers of one call and of others."""

from contextlib import ExitStack

import pytest

from paucal.verbs.compare._work import lock_cell
from paucal.verbs.compare.grid import cells_of
from paucal.verbs.compare.jobs import OVERHEAD_SECONDS
from paucal.verbs.compare.running import describe_work, progress_of
from verbs.compare.fakes import finish, make_grid

FORECAST = {"supervised": 100.0, "drloc": 300.0}


def test_time__is_shared_by_all_workers_whichever_call_they_are_of(tmp_path):
    grid = make_grid(tmp_path, forecast=FORECAST)
    cells = cells_of(grid)
    alone = progress_of(grid, cells, 1)
    assert (alone.seconds_left, alone.other_workers) == (800.0, 0)
    assert describe_work(alone, 1).startswith("time: 4 runs to compute with 1 worker, about 13 min left")
    with ExitStack() as stack:
        assert all(stack.enter_context(lock_cell(cell)) for cell in cells[:2])
        beside = progress_of(grid, cells, 1)  # before the call takes a run itself
        assert (beside.seconds_left, beside.other_workers) == (pytest.approx(800 / 3), 2)
        assert "with 1 worker and 2 of other calls, about 4 min 27 s left" in describe_work(beside, 1)
        own = progress_of(grid, cells, 2, busy=True)  # the two at work are its own
        assert (own.seconds_left, own.other_workers) == (400.0, 0)
        assert progress_of(grid, cells, 1, busy=True).other_workers == 1


def test_time__is_corrected_by_what_runs_took_and_no_run_has_two_workers(tmp_path):
    grid = make_grid(tmp_path, forecast={"supervised": 1.0 + OVERHEAD_SECONDS, "drloc": 20.0})
    cells = cells_of(grid)
    for cell in cells[:3]:
        finish(cell)
    left = [cell for cell in cells if not cell.run.finished]
    assert len(left) == 1
    want = grid.forecast[left[0].arm.name]
    took = 3 * (1.0 + OVERHEAD_SECONDS) / sum(grid.forecast[cell.arm.name] for cell in cells[:3])
    assert progress_of(grid, cells, 4).seconds_left == pytest.approx(want * took)
