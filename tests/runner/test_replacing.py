"""Replacing a run: what counts as one, where the old one lies, and what a kill leaves."""

import json
import os
from pathlib import Path

import pytest
import yaml

from paucal.runner.run_folder import (
    aside_path,
    discard_replaced_run,
    finish_replacement,
    has_set_aside_run,
    move_aside,
    remove_temporary_files,
    require_replaceable,
    restore_replaced_run,
)
from paucal.runs import create_run, open_run
from paucal.runs.lock import RunLock
from paucal.types import UserError

CONFIG = {"settings": {"data": "digits", "seed": 0, "output": None}, "origin": {}, "split": "random"}


def make_run(path: Path, state: bool = True):
    run = create_run(path)
    run.write_yaml("config.yaml", CONFIG)
    run.write_json("env.json", {"packages": {"paucal": "0.1.0"}})
    if state:
        run.last.write_text("state")
    return run


def refusal(path: Path) -> str:
    before = sorted(path.rglob("*"))
    with pytest.raises(UserError) as caught:
        require_replaceable(path)
    assert sorted(path.rglob("*")) == before
    return str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        "name: my project\n",
        "settings: none of ours\n",
        "a: [",
        "settings: {a: 1}\norigin: {}\n",
        "settings: {data: x, seed: 0}\n",
        yaml.safe_dump(CONFIG),  # with nothing of the environment
    ],
)
def test_replaceable__is_no_project_that_looks_like_a_run(tmp_path, config):
    project = tmp_path / "project"
    (project / "checkpoints").mkdir(parents=True)
    (project / "config.yaml").write_text(config)
    assert "replaces only run folders" in refusal(project)
    (project / "env.json").write_text('{"packages": {"torch": "2"}}')
    assert "replaces only run folders" in refusal(project)


@pytest.mark.parametrize("moment", ["before the lock", "before the settings", "before the versions"])
def test_replaceable__is_a_run_that_was_killed_while_it_was_created(tmp_path, moment):
    run = create_run(tmp_path / "run")
    holder = {"token": "t", "pid": 2**22 + 1, "host": "elsewhere", "space": "elsewhere", "since": "2026-01-01"}
    if moment != "before the lock":
        run.write_json("lock.json", holder)
        os.utime(run.path / "lock.json", (1, 1))
    if moment == "before the versions":
        run.write_yaml("config.yaml", CONFIG)
    require_replaceable(run.path)
    (run.path / "checkpoints.txt").write_text("mine")
    assert "'checkpoints.txt'" in refusal(run.path) or "replaces only run folders" in refusal(run.path)


def test_replaceable__is_a_run_with_a_ledger_and_a_kept_table(tmp_path):
    run = make_run(tmp_path / "run")
    (run.path / "ledger").mkdir()
    (run.path / "ledger" / "000000-00000.bin").write_bytes(b"{}")
    (run.path / "frame-0123456789abcdef.csv").write_text("path,label")
    require_replaceable(run.path)


def test_replaceable__is_no_run_with_files_of_others(tmp_path):
    run = make_run(tmp_path / "run")
    require_replaceable(run.path)
    (run.path / "thesis.tex").write_text("years of work")
    assert "--overwrite would remove 'thesis.tex'" in refusal(run.path)


def test_replaceable__is_no_link_nor_where_one_is(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    (tmp_path / "latest").symlink_to("run")
    assert "'" + str(tmp_path / "latest") + "' is a link to 'run': name the run itself" in refusal(tmp_path / "latest")
    for inside in (run.path, run.plots):
        monkeypatch.chdir(inside)
        assert "is the working directory, or contains it" in refusal(run.path)
    monkeypatch.chdir(run.path)
    assert "is the working directory" in refusal(Path("."))


def test_replaceable__is_no_run_that_is_being_written(tmp_path):
    run = make_run(tmp_path / "run")
    lock = RunLock(run.path)
    lock.acquire()
    assert "is being written by process" in refusal(run.path)
    lock.release()
    require_replaceable(run.path)


def test_aside__what_lies_there_already_is_never_removed(tmp_path):
    run = make_run(tmp_path / "run")
    (tmp_path / "run.replaced").mkdir()
    (tmp_path / "run.replaced" / "photo.jpg").write_text("x")
    assert "run.replaced', which already exists" in refusal(run.path)
    assert not finish_replacement(run.path)
    assert (tmp_path / "run.replaced" / "photo.jpg").exists()


def test_put_back__gives_the_old_run_its_place_as_it_was(tmp_path):
    run = make_run(tmp_path / "run")
    before = {file.relative_to(run.path): file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    assert move_aside(run.path) == tmp_path / "run.replaced"
    assert has_set_aside_run(run.path)
    assert str(run.path) in (tmp_path / "run.replaced" / "replaced.txt").read_text()
    make_run(run.path, state=False)
    restore_replaced_run(run.path)
    assert {file.relative_to(run.path): file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before
    assert list(tmp_path.iterdir()) == [run.path]


def test_aside__is_not_taken_for_the_newest_run(tmp_path):
    move_aside(make_run(tmp_path / "2").path)
    make_run(tmp_path / "1")
    os.utime(tmp_path / "1" / "config.yaml", (1, 1))
    assert open_run(tmp_path).path.name == "1"


def test_put_back__spares_what_another_has_put_in_its_place(tmp_path):
    run = make_run(tmp_path / "run")
    move_aside(run.path)
    run.path.mkdir()
    (run.path / "photo.jpg").write_text("x")
    with pytest.raises(UserError, match=r"the old run in '.*run\.replaced'"):
        restore_replaced_run(run.path)
    assert (run.path / "photo.jpg").exists()
    assert aside_path(run.path).exists()


@pytest.mark.parametrize("killed", ["before the new folder", "before its config", "before its first state"])
def test_settle__moves_the_old_run_back_after_a_kill(tmp_path, killed):
    run = make_run(tmp_path / "run")
    run.write_json("summary.json", {"title": "old"})
    move_aside(run.path)
    if killed == "before its config":
        create_run(run.path)
    elif killed == "before its first state":
        make_run(run.path, state=False)
    assert finish_replacement(run.path)
    assert run.read_json("summary.json") == {"title": "old"}
    assert list(tmp_path.iterdir()) == [run.path]
    assert not finish_replacement(run.path)


def test_settle__after_the_first_state_the_new_run_counts(tmp_path):
    run = make_run(tmp_path / "run")
    run.write_json("summary.json", {"title": "old"})
    move_aside(run.path)
    make_run(run.path)
    assert not finish_replacement(run.path)
    assert not (run.path / "summary.json").exists()
    assert list(tmp_path.iterdir()) == [run.path]


def test_settle__leaves_a_live_replacement_alone(tmp_path):
    run = make_run(tmp_path / "run")
    move_aside(run.path)
    new = make_run(run.path, state=False)
    lock = RunLock(new.path)
    lock.acquire()
    with pytest.raises(UserError, match="is being written"):
        finish_replacement(run.path)
    assert aside_path(run.path).exists()
    lock.release()


def test_discard__removes_the_old_run(tmp_path):
    run = make_run(tmp_path / "run")
    move_aside(run.path)
    make_run(run.path)
    discard_replaced_run(run.path)
    assert list(tmp_path.iterdir()) == [run.path]


def test_sweep__removes_what_writers_left_and_nothing_else(tmp_path):
    run = make_run(tmp_path / "run")
    kept = {file for file in run.path.rglob("*") if file.is_file()} | {run.path / ".hidden"}
    (run.path / ".hidden").write_text("x")
    left = [".config.yaml.12.tmp", "checkpoints/.last.ckpt.7.tmp", "plots/.curves.png.7.tmp", ".split.csv.tmp"]
    for name in left:
        (run.path / name).write_text("half")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / ".mine.tmp").write_text("x")
    os.symlink(tmp_path / "photos", run.path / "evaluation")
    remove_temporary_files(run.path)
    assert {file for file in run.path.rglob("*") if file.is_file()} == kept
    assert (tmp_path / "photos" / ".mine.tmp").exists()


def test_environment__of_a_run_is_what_tells_it(tmp_path):
    from paucal.runs import describe_environment

    run = make_run(tmp_path / "run")
    run.write_json("env.json", describe_environment("cpu"))
    require_replaceable(run.path)
    assert "paucal" in json.loads((run.path / "env.json").read_text())["packages"]
