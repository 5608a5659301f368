"""What `paucal runs` says of runs, from folders that look like theirs; nothing is trained here."""

import json
import os
import time
from pathlib import Path

import pytest

import paucal
from cli.calls import call, failure, table
from paucal.runs import RunFolder
from paucal.runs.lock import RunLock
from paucal.verbs.runs.launch import ABANDONED_RUN_SECONDS, RECENT_CHANGE_SECONDS, with_deletion_reasons
from paucal.verbs.runs.rows import list_runs

DAY = 86400.0


def make_run(path: Path, test: float | None = None, *, saved: bool = True, age: float = DAY, **settings) -> Path:
    """Make a folder such as a run leaves; without a test score it is not finished."""
    run = RunFolder(path)
    (path / "checkpoints").mkdir(parents=True)
    values = {"data": "photos", "method": "drloc", "model": "vit_mini", "seed": 0, "init": None, **settings}
    run.write_config({**values, "output": str(path)}, {}, "train")
    if saved:
        run.last.write_bytes(b"x" * 1000)
    if test is not None:
        run.write_json("summary.json", {"test_top1": test, "best_val_top1": test + 0.01, "seconds": 60.0})
    for file in [*path.rglob("*"), path]:
        os.utime(file, (time.time() - age,) * 2)
    return path


def names(runs) -> list[str]:
    return [run.name for run in runs]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    make_run(root / "1", 0.8, age=3 * DAY)
    make_run(root / "2", 0.9, age=2 * DAY, method="supervised")
    make_run(root / "3", age=1 * DAY, seed=7)
    make_run(root / "grid" / "cells" / "a" / "run", 0.7, age=4 * DAY)
    return root


def test_list__has_all_runs_with_state_and_scores(runs):
    make_run(runs / "4", saved=False)
    (runs / "no_run").mkdir()
    make_run(runs / "1" / "trials" / "0", 0.5)  # a run's own, not one of its own
    lock = RunLock(runs / "3")
    lock.acquire()
    found = {run.name: run for run in list_runs(runs)}
    lock.release()
    assert {name: run.state for name, run in found.items()} == {
        "1": "finished", "2": "finished", "3": "running", "4": "begun", "grid/cells/a/run": "finished",
    }  # fmt: skip
    assert (found["1"].value("test"), found["1"].value("val")) == (0.8, pytest.approx(0.81))
    assert found["1"].size > 1000
    assert list_runs(runs)[0].name == "grid/cells/a/run"  # the oldest first
    assert names(list_runs(runs / "1")) == ["1"]


def test_list__has_the_scores_of_runs_without_labels(runs):
    for name, judged in (("5", {}), ("grid/cells/b/run", {"knn": {"trained": 0.4, "random": 0.1}})):
        make_run(runs / name, 0.0)
        RunFolder(runs / name).write_json("summary.json", {"seconds": 60.0, "knn_end": 0.3, "knn_start": 0.2})
        if judged:
            RunFolder((runs / name).parent).write_json("judged.json", {"scores": judged})
    found = {run.name: (run.value("val"), run.value("test")) for run in list_runs(runs)}
    assert found["5"] == (0.3, None)
    assert found["grid/cells/b/run"] == (0.3, 0.4)
    linear = {"linear": {"trained": 0.6}, "knn": {"trained": 0.4}}
    RunFolder(runs / "grid/cells/b").write_json("judged.json", {"scores": linear})
    judged_run = {run.name: run for run in list_runs(runs)}["grid/cells/b/run"]
    assert (judged_run.value("test"), judged_run.value("judged_knn")) == (0.6, 0.4)
    (runs / "grid/cells/b/judged.json").write_text("{}")
    assert "is damaged" in {run.name: run for run in list_runs(runs)}["grid/cells/b/run"].problem


def test_list__is_filtered_and_sorted(runs):
    ask = lambda **settings: names(paucal.list_runs(runs, **settings))  # noqa: E731
    assert ask(sort="-test") == ["2", "1", "grid/cells/a/run", "3"]
    assert ask(sort="test") == ["grid/cells/a/run", "1", "2", "3"]
    assert ask(where=["method=drloc", "test>=0.8"]) == ["1"]
    assert ask(where=["method!=drloc"]) == ["2"]
    assert ask(where=["model=VIT*", "seed=7"]) == ["3"]
    assert ask(where=["init=none", "test<0.75"]) == ["grid/cells/a/run"]
    with pytest.raises(paucal.UserError, match=r"no run has 'methud' \(did you mean method\?\)"):
        ask(where=["methud=drloc"])
    with pytest.raises(paucal.UserError, match="but > and < need a number"):
        ask(where=["test>much"])
    with pytest.raises(paucal.UserError, match="expected conditions such as"):
        ask(where=["drloc"])
    with pytest.raises(paucal.UserError, match="--sort: no run has"):
        ask(sort="beauty")


def test_leftovers__are_what_nobody_needs(tmp_path):
    root, now = tmp_path, time.time()
    make_run(root / "empty", saved=False, age=2 * RECENT_CHANGE_SECONDS)
    make_run(root / "young", saved=False, age=10)
    make_run(root / "old", age=ABANDONED_RUN_SECONDS + 1.5 * DAY, seed=1)
    make_run(root / "stopped", age=DAY, seed=2)
    make_run(root / "twice", 0.8, age=2 * DAY, seed=3)
    make_run(root / "again", 0.8, age=DAY, seed=3, workers=4)
    make_run(root / "given_up", age=2 * DAY, seed=3)
    make_run(root / "repeated", age=DAY / 2, seed=3)
    parent = make_run(root / "parent", 0.8, age=3 * DAY, seed=4)
    make_run(root / "parent_again", 0.8, age=DAY, seed=4)
    make_run(root / "child", 0.9, seed=5, init=str(parent))
    told = {run.name: run.deletable for run in with_deletion_reasons(list_runs(root), now)}
    assert {name: reason for name, reason in told.items() if reason} == {
        "empty": "nothing was saved",
        "old": "stopped 31 days ago",
        "twice": "same settings as again, which is newer",
        "given_up": "same settings as again, which is newer",
    }


def test_leftovers__no_run_of_a_comparison_is_one(tmp_path):
    make_run(tmp_path / "grid" / "cells" / "a" / "run", 0.7, age=4 * DAY)
    make_run(tmp_path / "1", 0.7)
    (tmp_path / "grid" / "grid.json").write_text("{}")
    assert [run.deletable for run in with_deletion_reasons(list_runs(tmp_path))] == ["", ""]
    (tmp_path / "grid" / "grid.json").unlink()
    assert [run.deletable for run in with_deletion_reasons(list_runs(tmp_path))] == [
        "same settings as 1, which is newer",
        "",
    ]


def test_command__shows_and_writes_and_deletes_nothing(runs, tmp_path, capsys):
    make_run(runs / "4", 0.8)
    before = sorted(runs.rglob("*"))
    assert call("runs", runs, "--columns", "init", "--output", tmp_path / "table.csv") == 0
    said = capsys.readouterr().out
    assert "80.0 %" in said
    assert "the same for all: model vit_mini, data photos" in said
    assert "2 runs can be deleted" in said
    assert "same settings as 4, which is newer" in said
    rows = table(tmp_path / "table.csv")
    assert [row["run"] for row in rows] == ["grid/cells/a/run", "1", "2", "3", "4"]
    assert rows[1]["deletable"]
    assert call("runs", runs, "--deletable", "--output", tmp_path / "table.json") == 0
    listed = json.loads((tmp_path / "table.json").read_text())
    assert [row["run"] for row in listed] == ["grid/cells/a/run", "1"]
    assert sorted(runs.rglob("*")) == before
    assert "no folder" in failure(capsys, "runs", tmp_path / "nowhere")
    assert "must end in .csv or .json" in failure(capsys, "runs", runs, "--output", tmp_path / "table.txt")
    (runs / "2" / "config.yaml").write_text("[")
    assert call("runs", runs) == 0
    assert "2 cannot be read" in capsys.readouterr().out


def test_command__shows_the_error_of_runs_that_predict_numbers(runs, capsys):
    RunFolder(make_run(runs / "ages", 0)).write_json("summary.json", {"test_mae": 1.5234, "cross_validated_mae": 12.0})
    assert call("runs", runs) == 0
    said = capsys.readouterr().out
    assert "MAE 12 MAE 1.52" in " ".join(said.split())
    assert [run.value("test") for run in list_runs(runs) if run.name == "ages"] == [None]


def test_list__survives_settings_whose_names_are_no_text(tmp_path, capsys):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.yaml").write_text("settings:\n  model: vit_mini\n  1: x\n  data: {2: y, z: 3}\n")
    assert call("runs", tmp_path) == 0
    assert "odd" in capsys.readouterr().out


def test_command__sorts_from_the_highest_as_the_docs_say(runs, tmp_path):
    """A word that begins with a dash would be a flag to argparse; both forms are taken."""
    for number, words in enumerate((["--sort", "-test"], ["--sort=-test"])):
        assert call("runs", runs, *words, "--output", tmp_path / f"{number}.csv") == 0
        scores = [float(row["test"]) for row in table(tmp_path / f"{number}.csv") if row["test"]]
        assert len(scores) > 1
        assert scores == sorted(scores, reverse=True)
