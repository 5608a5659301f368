"""`paucal study` of detection and segmentation as people call it: what rows begin with is trained first."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.calls import call, failure
from cli.studied import rows_of, settings_of, shrink
from paucal.studies.scenes import DRAWN_FOLDER, OTHER_DIGITS, SCENES, START_DIGITS
from paucal.studies.study import Study
from paucal.verbs.compare.grid import STARTS, read_grid

GRIDS = (f"{STARTS}/train", SCENES)
NAMES = ("drloc-table-11", "drloc-table-12", "esvit-table-4", "esvit-table-10", "lvvit-segmentation")


@pytest.fixture(autouse=True)
def shrunk(monkeypatch):
    """Leave of the tiny scale what shows that everything is made: few scenes, an epoch of each."""
    shrink(monkeypatch, NAMES, _shrunk)


def _shrunk(study: Study) -> Study:
    tiny = study.scales["tiny"]
    assert tiny.start_training is not None
    few = {"pretrain": {**tiny.start_training.pretrain, "epochs": 1}} if tiny.start_training.pretrain else {}
    training = replace(
        tiny.start_training, images=48, epochs=1, side=32, set={**tiny.start_training.set, "val_fraction": 0.0}, **few
    )
    less = {"batch_size": 4, **({"proposals": 40, "regions": 16} if study.kind == "detect" else {})}
    scale = replace(tiny, images=40, epochs=1, side=64, start_training=training, set={**tiny.set, **less})
    # Full scale is another size alone: what is given for the starts takes the same way.
    models = {
        name: model if model.standin is None else replace(model, full=model.standin)
        for name, model in study.models.items()
    }
    full = {**scale.set, "img_size": [64], "epochs": 1}
    return replace(study, scales={"tiny": scale}, recipe="", full=full, epochs=1, models=models)


def runs_of(folder: Path) -> dict[str, Path]:
    """Return the runs of a grid by the beginning of their names."""
    return {path.parent.name.rpartition("-seed")[0]: path for path in sorted(folder.glob("cells/*/run"))}


@pytest.mark.slow
def test_study__segments_from_starts_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "study"
    words = ["study", "drloc-table-12", "--output", out, "--workers", "0", "--device", "cpu"]
    assert call(*words) == 0
    said = capsys.readouterr().out
    assert "2 segmenter runs" in said
    assert "first their initial weights (plain, drloc), on up to 48 images of 32 pixels" in said
    assert "time: 4 runs in all to compute, about" in said
    starts, runs = runs_of(out / STARTS / "train"), runs_of(out / SCENES)
    assert [settings_of(path)["method"] for path in (starts["plain"], starts["drloc"])] == ["supervised", "drloc"]
    rows = rows_of(out)
    for row, name, start in (("Swin-T", "Swin-T", "plain"), ("Swin-T + L_drloc", "Swin-T_+_L_drloc", "drloc")):
        assert settings_of(runs[name])["init"] == str(starts[start].resolve())
        stored = json.loads((runs[name] / "evaluation/test/segmentation.json").read_text())
        assert float(rows[row, "mIoU"]["measured"]) == pytest.approx(100 * stored["mean_iou"]["value"])
        assert float(rows[row, "mAcc"]["measured"]) == pytest.approx(100 * stored["mean_accuracy"])
    gain = float(rows["Swin-T + L_drloc", "mIoU"]["measured"]) - float(rows["Swin-T", "mIoU"]["measured"])
    assert float(rows["Swin-T + L_drloc", "mIoU"]["measured_gain"]) == pytest.approx(gain)
    assert float(rows["Swin-T + L_drloc", "mIoU"]["published_gain"]) == pytest.approx(0.46)
    page = (out / "study.html").read_text()
    assert "44.33" in page
    assert "Swin-T + L_drloc, started from drloc" in page
    assert "paucal train --img-size 32 --epochs 1 --init none" in page  # how the start was made
    assert f'href="{(runs["Swin-T"] / "report.html").relative_to(out)}"' in page
    assert 'href="starts/train/comparison.html"' in page
    assert (out / STARTS / "train" / "comparison.html").is_file()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert len(before) == 4
    given = [f"{name}={path}" for name, path in starts.items()]
    data = f"ade20k={out / DRAWN_FOLDER / SCENES}"
    full = ["study", "drloc-table-12", "--scale", "full", "--data", data, "--workers", "0", "--device", "cpu"]
    assert call(*full, "--init", *given, "--output", tmp_path / "full") == 0
    for name, path in runs_of(tmp_path / "full" / "ade20k").items():
        assert settings_of(path)["init"] == settings_of(runs[name])["init"]
    assert rows_of(tmp_path / "full")["Swin-T", "mIoU"]["measured"] == rows["Swin-T", "mIoU"]["measured"]
    assert call(*words) == 0  # nothing is trained again
    assert {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")} == before
    next((out / DRAWN_FOLDER / SCENES / "train" / "masks").iterdir()).unlink()
    assert "the images or labels differ from those" in failure(capsys, *words)


@pytest.mark.slow
def test_study__detects_and_grows_by_a_seed_with_a_start_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "study"
    words = ["study", "drloc-table-11", "--rows", "Cascade Mask R-CNN, Swin-T", "--workers", "0", "--device", "cpu"]
    assert call(*words, "--output", out) == 0
    assert call(*words, "--output", out, "--seeds", "0", "1") == 0
    starts, runs = ({settings_of(one)["seed"]: one for one in out.glob(f"{name}/cells/*/run")} for name in GRIDS)
    assert starts.keys() == runs.keys() == {0, 1}
    assert all(settings_of(runs[seed])["init"] == str(starts[seed].resolve()) for seed in (0, 1))
    assert all(settings_of(path)["cascade"] and settings_of(path)["masks"] == "on" for path in runs.values())
    row = rows_of(out)["Cascade Mask R-CNN, Swin-T", "AP mask"]
    scores = [json.loads((run / "evaluation/detection/metrics.json").read_text())["scores"] for run in runs.values()]
    assert float(row["measured"]) == pytest.approx(50 * sum(one["mask_ap"] for one in scores))
    assert (row["seeds"], row["published"]) == ("2", "33.8")
    assert rows_of(out)["Mask R-CNN, Swin-T", "AP box"]["why"] == "left out by --rows"
    other = ["--rows", "Mask R-CNN, Swin-T + L_drloc", *words[4:], "--output", out, "--seeds", "1", "--jobs", "0"]
    assert call(*words[:2], *other) == 0  # a worker will take both rows with both seeds, so all have starts
    begun = {path.name.rpartition("-")[0] for path in (out / STARTS / "train" / "cells").iterdir()}
    assert begun == {"plain-seed0", "plain-seed1"}
    assert {arm.name for arm in read_grid(out / STARTS / "train").arms} == {"plain", "drloc"}
    assert read_grid(out / STARTS / "train").seeds == (0, 1)


@pytest.mark.slow
def test_study__judges_frozen_backbones_on_digits_that_no_start_has_learned(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out, rows = tmp_path / "study", ["Sup. RN50", "Sup. Swin-T"]
    words = ["study", "esvit-table-10", "--rows", *rows, "--workers", "0", "--device", "cpu"]
    assert call(*words, "--output", out) == 0
    assert "2 evaluation runs, 1 seed each; first their initial weights (sup-rn50, sup-swin)" in capsys.readouterr().out
    found, starts = rows_of(out), runs_of(out / STARTS / "train")
    for row, name in zip(rows, ("sup-rn50", "sup-swin"), strict=True):
        (cell,) = (out / OTHER_DIGITS / "cells").glob(f"{row.replace(' ', '_')}-*")
        stored = json.loads((cell / "judged" / "results.json").read_text())
        assert stored["models"][0]["name"] == str(starts[name].resolve())
        line = next(one for one in stored["rows"] if one["protocol"] == "logistic" and one["score"] != "top-5")
        values = [score["value"] for score in line["scores"].values()]
        own = found[row, "Food-101"]
        assert [float(own["measured"]), float(own["random"])] == pytest.approx([100 * value for value in values[:2]])
        assert found[row, "MNIST"]["why"] == "not run at this scale"
    assert float(found[rows[1], "Food-101"]["published_gain"]) == pytest.approx(77.4 - 71.3)
    judged = {path.name for path in (out / DRAWN_FOLDER / OTHER_DIGITS).rglob("*.png")}
    assert judged.isdisjoint(path.name for path in (out / DRAWN_FOLDER / START_DIGITS).rglob("*.png"))
    given = [f"{name}={path}" for name, path in starts.items()]
    full = [
        "--scale",
        "full",
        "--columns",
        "MNIST",
        "--data",
        f"mnist={out / DRAWN_FOLDER / OTHER_DIGITS}",
        "--init",
        *given,
    ]
    assert call(*words, *full, "--output", tmp_path / "full") == 0
    other = rows_of(tmp_path / "full")
    assert {row: other[row, "MNIST"]["measured"] for row in rows} != {row: "" for row in rows}
    before = {path: path.stat().st_mtime_ns for path in out.rglob("judged.json")}
    assert call(*words, "--output", out) == 0  # nothing is judged again
    assert {path: path.stat().st_mtime_ns for path in out.rglob("judged.json")} == before


@pytest.mark.slow
def test_study__detects_from_a_start_that_learned_without_labels(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "study"
    assert call("study", "esvit-table-4", "--output", out, "--workers", "0", "--device", "cpu") == 0
    runs = runs_of(out / SCENES)
    for name, verb in (("Supervised", "train"), ("EsViT", "pretrain")):
        (start,) = runs_of(out / STARTS / verb).values()
        assert settings_of(runs[name])["init"] == str(start.resolve())
        remarks = json.loads((runs[name] / "summary.json").read_text())["remarks"]
        assert any("100 % of the parameters below the classifier" in line for line in remarks)
    assert all(row["seeds"] == "1" for row in rows_of(out).values())


@pytest.mark.slow
def test_study__judges_segmenters_at_several_scales_too(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "study"
    words = ["--rows", "LV-ViT-S", "--output", out, "--workers", "0", "--device", "cpu"]
    assert call("study", "lvvit-segmentation", *words) == 0
    row = rows_of(out)["LV-ViT-S", "mIoU multi-scale"]
    (found,) = out.glob("scenes/cells/*/judged/segmentation.json")
    assert float(row["measured"]) == pytest.approx(100 * json.loads(found.read_text())["mean_iou"]["value"])
    (run,) = runs_of(out / SCENES).values()
    again = ["--scales", "0.8", "1", "1.25", "--output", tmp_path / "again"]
    assert call("eval", run, *again) == 0  # the looks of the smaller scales
    stored = json.loads((tmp_path / "again" / "segmentation.json").read_text())
    assert stored == json.loads(found.read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drloc-table-10", "--data-root", "sets"], "boxes and masks are read from folders: remove --data-root"),
        (["drloc-table-12", "--init", "plain=run"], "--init needs --scale full"),
        (["drloc-table-12", "--scale", "full"], "ADE20K cannot be opened by name"),
        (
            ["drloc-table-12", "--scale", "full", "--data", "ade20k=DATA"],
            "Swin-T + L_drloc of drloc-table-12 needs the initial weights drloc (a Swin-T trained on ImageNet-1K with "
            "DrLoc, which is not published): give --init drloc=RUN_OR_FILE, or exclude the rows that need it with "
            "--rows.",
        ),
        (
            ["drloc-table-12", "--scale", "full", "--data", "ade20k=DATA", "--init", "drlok=RUN"],
            "expected NAME=RUN with NAME one of plain, drloc, got 'drlok=RUN'",
        ),
        (["drloc-table-9", "--scale", "full", "--init", "a", "b"], "have the same initial weights: give one"),
        (["drloc-table-12", "--data", "DATA"], "contains no images"),
    ],
)
def test_study__says_what_is_wrong(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DATA").mkdir()
    assert said in failure(capsys, "study", *words)
    assert [path.name for path in tmp_path.rglob("*")] == ["DATA"]  # nothing is written before all is sound
