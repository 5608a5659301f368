"""Who writes a run, and what becomes of the run it replaces."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from paucal.runner.console import SilentConsole
from paucal.runner.run_folder import RunWriter, aside_path, is_valid_state, move_aside
from paucal.runs import create_run
from paucal.runs.lock import LOCK_FILE, RunLock
from paucal.types import UserError


def make_run(path, title, state=True):
    run = create_run(path)
    run.write_yaml("config.yaml", {"settings": {"data": "digits", "seed": 0, "output": None}, "origin": {}})
    run.write_json("env.json", {"packages": {"paucal": "0.1.0"}})
    run.write_json("summary.json", {"title": title})
    if state:
        run.last.write_text("state")
    return run


def failing(problem, work):
    """Write a run with a function that ends with a problem; return the message."""

    def write():
        with RunWriter(SilentConsole()) as writing:
            work(writing)

    with pytest.raises(problem) as caught:
        write()
    return str(caught.value)


def trainer(step=10, skipped=0.0, weight=1.0):
    network = nn.Linear(2, 1)
    nn.init.constant_(network.weight, weight)
    return SimpleNamespace(global_step=step), SimpleNamespace(
        meters=SimpleNamespace(skipped=torch.tensor(skipped)), parameters=network.parameters
    )


@pytest.mark.parametrize("problem", [UserError, RuntimeError, KeyboardInterrupt, SystemExit])
def test_replaced_run__is_back_when_the_new_one_fails_before_its_first_state(tmp_path, problem):
    old = make_run(tmp_path / "run", "old")
    files = {file.relative_to(old.path) for file in old.path.rglob("*")}

    def work(writing):
        run = writing.begin(str(old.path), True)
        assert not run.config.exists()
        assert json.loads((aside_path(old.path) / "summary.json").read_text())["title"] == "old"
        run.write_yaml("config.yaml", {})
        raise problem("no")

    failing(problem, work)
    assert old.read_json("summary.json")["title"] == "old"
    assert {file.relative_to(old.path) for file in old.path.rglob("*")} == files
    assert list(tmp_path.iterdir()) == [old.path]


def test_replaced_run__goes_with_the_first_sound_state_of_the_new_one(tmp_path):
    old = make_run(tmp_path / "run", "old")

    def work(writing):
        run = writing.begin(str(old.path), True)
        end = lambda *of: writing.on_train_batch_end(*of, None, None, 0)  # noqa: E731
        end(*trainer())
        assert aside_path(old.path).exists()  # no state yet
        run.last.write_text("new state")
        end(*trainer(weight=float("inf")))
        end(*trainer(step=10, skipped=6.0))
        assert aside_path(old.path).exists()  # a state of no worth
        end(*trainer(step=10, skipped=1.0))
        assert not aside_path(old.path).exists()
        raise RuntimeError("later")

    assert failing(RuntimeError, work) == "later"
    assert old.last.read_text() == "new state"
    assert not (old.path / "summary.json").exists()
    assert list(tmp_path.iterdir()) == [old.path]
    assert not (old.path / LOCK_FILE).exists()


@pytest.mark.parametrize(("step", "skipped", "weight", "sound"), [(1, 0, 1.0, True), (9, 5, 1.0, False)])
def test_is_sound__by_skipped_steps(step, skipped, weight, sound):
    assert is_valid_state(*trainer(step, float(skipped), weight)) is sound
    assert not is_valid_state(*trainer(step, float(skipped), float("nan")))


def test_run__that_ends_well_replaces_the_old_one(tmp_path):
    old = make_run(tmp_path / "run", "old")
    with RunWriter(SilentConsole()) as writing:
        writing.begin(str(old.path), True).write_json("summary.json", {"title": "new"})
    assert old.read_json("summary.json")["title"] == "new"
    assert list(tmp_path.iterdir()) == [old.path]


def test_resumption__of_a_killed_replacement_still_gives_the_old_run_back(tmp_path):
    old = make_run(tmp_path / "run", "old")
    move_aside(old.path)
    run = make_run(tmp_path / "run", "new", state=False)
    (run.path / "checkpoints" / ".last.ckpt.7.tmp").write_text("half")

    def work(writing):
        writing.lock_existing(old)
        assert not (old.path / "checkpoints" / ".last.ckpt.7.tmp").exists()
        assert aside_path(old.path).exists() != old.last.exists()
        raise RuntimeError

    failing(RuntimeError, work)
    assert old.read_json("summary.json")["title"] == "old"
    move_aside(old.path)
    run = make_run(tmp_path / "run", "new")
    failing(RuntimeError, work)
    assert run.read_json("summary.json")["title"] == "new"


def test_second_writer__is_refused_and_changes_nothing(tmp_path):
    old = make_run(tmp_path / "run", "old")
    lock = RunLock(old.path)
    lock.acquire()
    files = {file.relative_to(old.path) for file in old.path.rglob("*")}
    assert "is being written by process" in failing(UserError, lambda writing: writing.lock_existing(old))
    assert "is being written by process" in failing(UserError, lambda writing: writing.begin(str(old.path), True))
    assert {file.relative_to(old.path) for file in old.path.rglob("*")} == files
    lock.check()
    lock.release()
    assert list(tmp_path.iterdir()) == [old.path]


def test_first_writer__that_lost_its_run_stops_and_leaves_it_alone(tmp_path):
    old = make_run(tmp_path / "run", "old")

    def work(writing):
        run = writing.begin(str(old.path), True)
        theirs = json.loads((run.path / LOCK_FILE).read_text()) | {"token": "theirs"}
        (run.path / LOCK_FILE).write_text(json.dumps(theirs))
        assert writing._lock is not None
        writing._lock._last_renewal -= 1000
        writing.on_train_batch_start(*trainer(), None, 0)

    assert "another process has taken over" in failing(UserError, work)
    assert json.loads((old.path / LOCK_FILE).read_text())["token"] == "theirs"
    assert aside_path(old.path).exists()
