"""How many images a start has been shown since its weights were random, read from the runs that made it."""

from pathlib import Path

import pytest

from paucal.runner.initial_weights import count_images_seen
from paucal.runs import RunFolder


def made(folder: Path, init: str | None, parts: object, epochs: object = 10) -> RunFolder:
    run = RunFolder(folder)
    folder.mkdir()
    run.write_yaml("config.yaml", {"settings": {"init": init}})
    run.write_json("summary.json", {"parts": parts, "epochs": epochs})
    return run


@pytest.mark.parametrize("init", [None, "none"])
def test_images__of_all_runs_since_the_first_are_counted(tmp_path, init):
    first = made(tmp_path / "1", init, {"train": 200, "val": 20})
    assert count_images_seen(first) == 2_000
    second = made(tmp_path / "2", str(first.path), {"train": {"cat": 30, "dog": 20}}, 4)
    assert count_images_seen(second) == 2_200


@pytest.mark.parametrize("init", ["timm", "auto"])
def test_weights_of_others__are_not_counted_however_short_the_runs_since(tmp_path, init):
    first = made(tmp_path / "1", init, {"train": 200})
    assert count_images_seen(first) is None
    assert count_images_seen(made(tmp_path / "2", str(first.path), {"train": 50})) is None


def test_weights_file__and_a_run_that_is_gone_are_unknown(tmp_path):
    (tmp_path / "weights.pth").write_bytes(b"")
    assert count_images_seen(made(tmp_path / "1", str(tmp_path / "weights.pth"), {"train": 200})) is None
    assert count_images_seen(made(tmp_path / "2", str(tmp_path / "gone"), {"train": 200})) is None


@pytest.mark.parametrize("parts", [None, 3, {"test": 3}, {"train": "many"}, {"train": {"cat": "many"}}])
def test_damaged_summaries__say_nothing(tmp_path, parts):
    assert count_images_seen(made(tmp_path / "1", None, parts)) is None
    (tmp_path / "1" / "summary.json").write_text("{")
    assert count_images_seen(RunFolder(tmp_path / "1")) is None
