"""Cross-validation, groups, stored splits and unbalanced classes, as people call them."""

import csv
import json
import statistics
from pathlib import Path

import pytest

import paucal
from cli.calls import QUICK, call, failure, make_photos, table
from paucal.runs import RunFolder
from paucal.tasks.classification.folds import CrossValidated


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos", classes=2)


def parts_of(run: Path) -> dict[str, str]:
    return {row["key"]: row["split"] for row in table(run / "split.csv")}


def test_folds__test_every_image_once_and_tell_mean_and_spread(photos, tmp_path, capsys):
    out = tmp_path / "cv"
    assert call("train", photos, *QUICK, "--folds", "3", "--output", out) == 0
    runs = [out / f"fold-{number}" for number in (1, 2, 3)]
    tested = [key for run in runs for key, part in parts_of(run).items() if part == "test"]
    assert sorted(tested) == sorted(parts_of(runs[0]))
    told = json.loads((out / "folds.json").read_text())
    scores = [json.loads((run / "summary.json").read_text())["test_top1"] for run in runs]
    assert told["mean"]["top1"] == pytest.approx(statistics.fmean(scores))
    assert told["spread"]["top1"] == pytest.approx(statistics.stdev(scores))
    said = capsys.readouterr().out
    assert "fold 3 of 3" in said
    assert "spread" in said
    before = (runs[0] / "model.safetensors").stat().st_mtime_ns
    assert call("train", photos, *QUICK, "--folds", "3", "--output", out) == 0  # nothing is trained again
    assert (runs[0] / "model.safetensors").stat().st_mtime_ns == before
    assert "has no folds with these" in failure(capsys, "train", photos, *QUICK, "--folds", "4", "--output", out)


def test_folds__with_a_fold_that_lacks_a_class_are_told_without_roc_auc(tmp_path):
    scores = [{"top1": 0.5, "roc_auc": 0.7}, {"top1": 0.7}]
    for folds in (scores, scores[::-1]):
        found = CrossValidated(tmp_path, folds)
        assert found.metrics == {"top1": pytest.approx(0.6)}
        assert list(found.spread) == ["top1"]


@pytest.mark.slow
def test_folds__in_python(photos, tmp_path):
    quick = {"img_size": [16], "workers": 0, "model": "vit_mini", "model_args": ["depth=1"], "epochs": 1}
    found = paucal.cross_validate(photos, folds=2, output=tmp_path / "cv", **quick)
    assert len(found.folds) == 2
    assert found.metrics["top1"] == pytest.approx(statistics.fmean(one["top1"] for one in found.folds))
    with pytest.raises(paucal.UserError, match=r"paucal\.cross_validate"):
        paucal.train(photos, folds=2, **quick)


@pytest.mark.slow
def test_split__of_a_run_is_used_again(photos, tmp_path, capsys):
    first, second = tmp_path / "a", tmp_path / "b"
    assert call("train", photos, *QUICK, "--output", first) == 0
    assert call("train", photos, *QUICK, "--seed", "9", "--split", first / "split.csv", "--output", second) == 0
    assert parts_of(second) == parts_of(first)
    again = ["train", photos, *QUICK, "--split", first / "split.csv"]
    assert "remove --group-by" in failure(capsys, *again, "--group-by", "x")


def assert_no_top5(run: Path) -> None:
    assert "top5" not in (run / "evaluation" / "test" / "metrics.json").read_text()
    assert "top-5" not in (run / "report.html").read_text()


@pytest.mark.parametrize("flags", [["--class-weights", "auto"], ["--sampling", "balanced"]])
def test_balance__trains_and_is_stored_and_two_classes_need_no_top5(photos, tmp_path, flags):
    for path in sorted((photos / "class1").iterdir())[6:]:
        path.unlink()
    assert call("train", photos, *QUICK, *flags, "--output", tmp_path / "run") == 0
    stored = RunFolder(tmp_path / "run").read_yaml("config.yaml")["settings"]
    assert stored[flags[0].strip("-").replace("-", "_")] == flags[1]
    assert_no_top5(tmp_path / "run")


def test_balance__both_at_once_is_refused(photos, capsys):
    told = failure(capsys, "train", photos, *QUICK, "--class-weights", "auto", "--sampling", "balanced")
    assert "would both favour rare classes" in told


def test_groups__of_a_table_by_its_column(photos, tmp_path, capsys):
    paths = sorted(path.relative_to(tmp_path) for path in photos.rglob("*.png"))
    rows = [[path.as_posix(), path.parent.name, f"p{number // 2}"] for number, path in enumerate(paths)]
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image_path", "label", "patient"], *rows])
    assert call("train", tmp_path / "table.csv", *QUICK, "--group-by", "patient", "--output", tmp_path / "run") == 0
    parts = parts_of(tmp_path / "run")
    assert {parts[one[0]] for one in rows} == {"train", "val", "test"}
    assert all(parts[a[0]] == parts[b[0]] for a, b in zip(rows[::2], rows[1::2], strict=True))
    # Intervals take a group as one draw, also when the run is evaluated again.
    metrics = tmp_path / "run/evaluation/test/metrics.json"
    stored = json.loads(metrics.read_text())
    size = f"{stored['images']} images in {len({row[2] for row in rows if parts[row[0]] == 'test'})} groups"
    assert size in capsys.readouterr().out
    assert size.replace("images", "test images") in (tmp_path / "run/report.html").read_text()
    assert call("eval", tmp_path / "run") == 0
    assert size in capsys.readouterr().out
    assert json.loads(metrics.read_text()) == stored


@pytest.mark.parametrize("classes", [pytest.param(3, marks=pytest.mark.slow), 4])
def test_few_classes__need_no_top5(tmp_path, classes):
    photos = make_photos(tmp_path / "photos", classes=classes)
    assert call("train", photos, *QUICK, "--output", tmp_path / "run") == 0
    assert_no_top5(tmp_path / "run")
