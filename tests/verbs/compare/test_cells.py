"""Cells that are claimed, finished, failed, left behind and taken over; nothing is trained here."""

import itertools
import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from paucal.runs.lock import RunLock
from paucal.types import UserError
from paucal.verbs.compare._work import MAX_TRIES, clear_failure, lock_cell, store_failure, work
from paucal.verbs.compare.grid import (
    cells_of,
    choose_learning_rate,
    compared_cells,
    make_cell,
    merge_grids,
    read_grid,
    state_of,
)
from verbs.compare.fakes import arm, broken, finish, log_of, make_grid, quick, worker

PROCESSES = multiprocessing.get_context("fork")


def run_worker(folder: Path, kind: str) -> int | None:
    process = PROCESSES.Process(target=worker, args=(str(folder), kind))
    process.start()
    process.join()
    return process.exitcode


def test_cell__has_the_folder_of_its_contents(tmp_path):
    grid = make_grid(tmp_path / "a")
    first = make_cell(grid, grid.arms[0], 0)
    assert first.folder.name.startswith("supervised-seed0-")
    others = [
        make_cell(grid, grid.arms[0], 1),
        make_cell(grid, grid.arms[1], 0),
        make_cell(grid, grid.arms[0], 0, rate=0.1),
        make_cell(replace(grid, fingerprint="others"), grid.arms[0], 0),
        make_cell(replace(grid, shared={"epochs": 4}), grid.arms[0], 0),
    ]
    assert len({cell.folder.name for cell in [first, *others]}) == 6
    elsewhere = make_grid(tmp_path / "b", shared={"epochs": 3, "data": "/elsewhere", "workers": 4})
    assert make_cell(elsewhere, grid.arms[0], 0).folder.name == first.folder.name


def test_cell__leaves_out_settings_of_methods_it_does_not_use(tmp_path):
    plain, weighed = (make_grid(tmp_path / name, shared=shared) for name, shared in
                      (("a", {"epochs": 3}), ("b", {"epochs": 3, "drloc_weight": 0.1})))  # fmt: skip
    of = {name: [make_cell(grid, one, 0) for grid in (plain, weighed)] for one in plain.arms for name in [one.way]}
    assert of["supervised"][0].folder.name == of["supervised"][1].folder.name
    assert of["drloc"][0].folder.name != of["drloc"][1].folder.name
    assert "drloc_weight" not in of["supervised"][1].settings


def test_states__follow_what_lies_in_the_folder(tmp_path):
    cell = cells_of(make_grid(tmp_path))[0]
    assert state_of(cell).name == "pending"
    with lock_cell(cell) as mine:
        assert mine
        assert state_of(cell).name == "running"
        with lock_cell(cell) as again:
            assert not again
    cell.run.path.mkdir()
    cell.run.config.touch()
    assert state_of(cell).name == "stopped"
    store_failure(cell, UserError("no luck."))
    assert (state_of(cell).name, state_of(cell).error) == ("failed", "no luck.")
    with lock_cell(cell) as mine:
        assert not mine
    clear_failure(cell)
    assert state_of(cell).name == "stopped"
    finish(cell)
    assert state_of(cell).name == "done"


def test_workers__share_a_grid_and_compute_every_cell_once(tmp_path):
    make_grid(tmp_path, ways=("supervised", "drloc"), seeds=range(6))
    processes = [PROCESSES.Process(target=worker, args=(str(tmp_path), "quick")) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    done = log_of(tmp_path)
    assert sorted(name for name, _ in done) == sorted(cell.folder.name for cell in cells_of(read_grid(tmp_path)))
    assert len({pid for _, pid in done}) > 1


def test_worker__takes_over_what_a_killed_one_has_left_and_goes_on(tmp_path):
    grid = make_grid(tmp_path, seeds=(0,))
    assert run_worker(tmp_path, "stopping") == -9
    cell = cells_of(grid)[0]
    assert cell.run.last.read_text() == "1"
    assert run_worker(tmp_path, "stopping") == -9  # in the other cell; the first one was gone on with
    assert cell.run.last.read_text() == "2"
    assert state_of(cell).name == "done"
    assert run_worker(tmp_path, "stopping") == 0
    assert all(state_of(one).name == "done" for one in cells_of(grid))


def test_cell__that_kills_every_worker_has_failed_and_the_others_are_done(tmp_path):
    grid = make_grid(tmp_path, seeds=(0,))
    first, second = cells_of(grid)
    for _ in range(MAX_TRIES):
        assert run_worker(tmp_path, "suicidal") == -9
    assert run_worker(tmp_path, "quick") == 0
    assert "without making progress" in state_of(first).error
    assert state_of(second).name == "done"
    clear_failure(first)
    assert run_worker(tmp_path, "quick") == 0
    assert state_of(first).name == "done"


def test_cell__that_always_fails_is_tried_once_and_the_others_are_done(tmp_path):
    grid = make_grid(tmp_path, seeds=(0, 1))
    assert work(tmp_path, broken, pause=0.01)
    states = {(cell.arm.way, cell.seed): state_of(cell) for cell in cells_of(grid)}
    assert {key: state.name for key, state in states.items()} == {
        ("supervised", 0): "done", ("supervised", 1): "done", ("drloc", 0): "failed", ("drloc", 1): "failed",
    }  # fmt: skip
    assert states["drloc", 0].error == "the method is broken: mend it."


def test_failure__that_is_no_mistake_of_the_user_keeps_its_traceback(tmp_path):
    def buggy(cell, threads):
        raise ZeroDivisionError("of all things")

    grid = make_grid(tmp_path, seeds=(0,))
    assert work(tmp_path, buggy, pause=0.01)
    cell = cells_of(grid)[0]
    assert state_of(cell).error == "ZeroDivisionError: of all things"
    assert "in buggy" in (cell.folder / "failed.json").read_text()


def test_worker__that_was_stopped_leaves_the_rest(tmp_path):
    grid = make_grid(tmp_path, seeds=(0,))
    assert not work(tmp_path, lambda cell, threads: False, pause=0.01)
    assert [state_of(cell).name for cell in cells_of(grid)] == ["pending", "pending"]

    def interrupted(cell, threads):
        raise KeyboardInterrupt

    for _ in range(MAX_TRIES + 1):  # an interrupt is no fault of the cell
        with pytest.raises(KeyboardInterrupt):
            work(tmp_path, interrupted, pause=0.01)
    assert work(tmp_path, quick, pause=0.01)


def test_worker__waits_for_others_and_sees_the_grid_grow(tmp_path):
    grid = make_grid(tmp_path, seeds=(0,))
    held = cells_of(grid)[0]
    held.folder.mkdir(parents=True)
    lock, looks = RunLock(held.folder, "the cell"), []
    lock.acquire()

    def look(seen):
        looks.append(len(cells_of(seen)))
        if len(looks) == 3:  # the other cell is done, and nothing is left but what another worker has
            merge_grids(grid, replace(grid, seeds=(1,))).write()
            finish(held)
            lock.release()

    assert work(tmp_path, quick, look, pause=0.01)
    assert looks[:3] == [2, 2, 2]
    assert looks[-1] == 4
    assert all(state_of(cell).name == "done" for cell in cells_of(read_grid(tmp_path)))


def test_grid__grows_by_arms_and_seeds_and_by_nothing_else(tmp_path):
    grid = make_grid(tmp_path, commands=("first",))
    more = replace(grid, arms=(arm("token-labeling"), arm("drloc")), seeds=(5, 0), commands=("second",))
    new = merge_grids(grid, more)
    assert [one.way for one in new.arms] == ["supervised", "drloc", "token-labeling"]
    assert (new.seeds, new.commands) == ((0, 1, 5), ("first", "second"))
    assert {cell.folder for cell in cells_of(grid)} < {cell.folder for cell in cells_of(new)}
    with pytest.raises(UserError, match=r"--epochs was 3, now 4"):
        merge_grids(grid, replace(grid, shared={"epochs": 4}))
    with pytest.raises(UserError, match=r"--lrs was not given, now \[0.1\]"):
        merge_grids(grid, replace(grid, rates=(0.1,)))
    with pytest.raises(UserError, match="images or labels differ from those"):
        merge_grids(grid, replace(grid, fingerprint="others"))
    with pytest.raises(UserError, match=r"--drloc-weight was not given, now 2"):
        merge_grids(grid, replace(grid, arms=(arm("drloc", drloc_weight=2),)))


def test_grid__is_read_as_it_was_written(tmp_path):
    grid = make_grid(tmp_path, rates=(0.1, 0.2), forecast={"drloc": 2.5}, threads=3)
    assert read_grid(tmp_path) == grid
    stored = json.loads((tmp_path / "grid.json").read_text())
    for damage in ({"seeds": []}, {"arms": []}, {"threads": 0}, {"shared": 1}, {"format": 9}, {"forecast": []}):
        (tmp_path / "grid.json").write_text(json.dumps({**stored, **damage}))
        with pytest.raises(UserError, match="is damaged"):
            read_grid(tmp_path)
    stored["arms"][0]["settings"]["method"] = []
    (tmp_path / "grid.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="must be text"):
        read_grid(tmp_path)
    with pytest.raises(UserError, match="contains no comparison"):
        read_grid(tmp_path / "nowhere")


def test_rates__are_chosen_on_validation_before_the_other_seeds_begin(tmp_path):
    grid = make_grid(tmp_path, seeds=(3, 4), rates=(0.1, 0.2, 0.4))
    trials = cells_of(grid)
    assert [(cell.arm.way, cell.rate, cell.seed, cell.is_trial) for cell in trials] == [
        (way, rate, 3, True) for way in ("supervised", "drloc") for rate in (0.1, 0.2, 0.4)
    ]
    for cell, score in zip(trials[:3], (0.3, 0.6, 0.6), strict=True):
        assert choose_learning_rate(trials[:3]) is None
        finish(cell, score)
    assert choose_learning_rate(trials[:3]) == 0.2  # the first of equals
    assert [(cell.arm.way, cell.rate, cell.seed) for cell in cells_of(grid)[6:]] == [("supervised", 0.2, 4)]
    for cell in trials[3:]:
        cell.folder.mkdir(parents=True)
        store_failure(cell, UserError("no."))
    assert choose_learning_rate(trials[3:]) is None
    compared = [(cell.arm.way, cell.rate, cell.seed) for cell in compared_cells(grid)]
    assert compared == [("supervised", 0.2, 3), ("supervised", 0.2, 4)]


def test_work__goes_on_without_the_terminal_but_not_without_its_leader(tmp_path, monkeypatch):
    """`nohup paucal compare ... &` outlives the shell that it was typed into; a worker process ends with its leader."""
    make_grid(tmp_path)
    parents = itertools.count(100)
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    assert not work(tmp_path, quick, pause=0.01, end_with_parent=True)
    assert work(tmp_path, quick, pause=0.01)
