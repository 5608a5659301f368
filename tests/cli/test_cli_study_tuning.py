"""`paucal study` of rows that are tuned as people call it: what they begin with is trained first, or given."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.calls import call, failure, make_photos
from cli.studied import rows_of, settings_of, shrink
from paucal.data.sources.opening import open_digits
from paucal.data.splits.split_csv import read_rows
from paucal.studies.study import Architecture, Model, Study
from paucal.verbs.compare.grid import STARTS

NAMES = ("dhvt-table-1", "drloc-table-5")
GRIDS = {"row": "digits", "start": f"{STARTS}/train"}


@pytest.fixture(autouse=True)
def shrunk(monkeypatch):
    """Leave of the tiny scale what shows that everything is made: a block, few images, an epoch."""
    shrink(monkeypatch, NAMES, _shrunk)


def _shrunk(study: Study) -> Study:
    tiny = study.scales["tiny"]
    assert tiny.start_training is not None
    few = {"batch_size": 8, "val_fraction": 0.0, "test_fraction": 0.2}
    training = replace(tiny.start_training, images=60, epochs=1, set={**tiny.start_training.set, **few})
    scale = replace(tiny, images=60, epochs=1, start_training=training, set={**tiny.set, **few})
    models = {name: _small(model) for name, model in study.models.items()}
    # The operations of published models of other rows are counted elsewhere.
    rows = tuple(row if row in study.trained_rows else replace(row, model="") for row in study.rows)
    # Full scale is another size alone: what is given for the starts takes the same way.
    full = {**scale.set, "img_size": [32], "epochs": 1, "fraction": 0.1}
    return replace(study, scales={"tiny": scale}, recipe="", full=full, epochs=1, rows=rows, models=models)


def _small(model: Model) -> Model:
    if model.standin is None or "depth=4" not in model.standin.args:
        return model
    args = [word for word in model.standin.args if word != "depth=4"]
    small = Architecture(model.standin.name, (*args, "depth=1"))
    return replace(model, standin=small, full=small)


def runs_of(out: Path, kind: str) -> dict[tuple[str, int], Path]:
    """Return the runs of the rows or of the starts by the beginning of their names and by their seeds."""
    found = sorted(out.glob(f"{GRIDS[kind]}/cells/*/run"))
    return {(path.parent.name.partition("-seed")[0], settings_of(path)["seed"]): path for path in found}


@pytest.mark.slow
def test_study__tunes_each_row_from_the_start_of_its_model_and_seed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "study"
    words = ["study", "dhvt-table-1", "--output", out, "--workers", "0", "--device", "cpu"]
    assert call(*words) == 0
    said = capsys.readouterr().out
    assert "first their initial weights (dhvt-t, dhvt-s), on up to 60 images of 32 pixels" in said
    assert "time: 4 runs in all to compute, about" in said
    assert call(*words, "--seeds", "0", "1") == 0
    rows, starts = runs_of(out, "row"), runs_of(out, "start")
    assert rows.keys() == {(name, seed) for name in ("DHVT-T", "DHVT-S") for seed in (0, 1)}
    for (name, seed), run in rows.items():
        start = starts[name.lower(), seed]
        settings = settings_of(run)
        assert settings["init"] == str(start.resolve())
        assert all(settings[key] == settings_of(start)[key] for key in ("model", "model_args"))
        remarks = " ".join(json.loads((run / "summary.json").read_text())["remarks"])
        assert "100 % of the parameters below the classifier; classifier: fresh" in remarks
        assert "the initial weights were trained on" not in remarks
        assert labels_in(run) == {"5", "6", "7", "8", "9"}
        assert labels_in(start) == {"0", "1", "2", "3", "4"}
    line = rows_of(out)["DHVT-T", "CIFAR-100"]
    scores = [json.loads((rows["DHVT-T", seed] / "summary.json").read_text())["test_top1"] for seed in (0, 1)]
    assert (line["published"], line["seeds"]) == ("86.73", "2")
    assert float(line["measured"]) == pytest.approx(50 * sum(scores))
    assert rows_of(out)["Swin-T", "CIFAR-100"]["why"] == "quoted"
    page, commands = ((out / name).read_text() for name in ("study.html", "digits/commands.txt"))
    assert "DHVT-T, started from dhvt-t" in page
    assert "paucal train --img-size 32 --epochs 1 --init none --classes digits-0-to-4" in page  # how a start was made
    assert f"--seed 1 --init {starts['dhvt-s', 1]}" in commands  # and how a run was
    assert "--start" not in page + commands  # what is no setting of the verb
    before = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert len(before) == 8
    assert call(*words) == 0  # nothing is trained again
    assert {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")} == before
    full = ["study", "dhvt-table-1", "--scale", "full", "--data", "cifar100=digits"]
    given = ["--rows", "DHVT-S", "--init", f"dhvt-s={starts['dhvt-s', 1]}"]  # the other start is not asked for
    assert call(*full, *given, "--output", tmp_path / "full", "--workers", "0", "--device", "cpu") == 0
    (run,) = (tmp_path / "full").glob("cifar100/cells/*/run")
    assert settings_of(run)["init"] == str(starts["dhvt-s", 1].resolve())


def labels_in(run: Path) -> set[str]:
    """Return the classes of the images that a run has looked at."""
    digits = open_digits()
    rows = [int(row["key"].partition("#")[2]) for row in read_rows(run / "split.csv")]
    return {digits.classes[digits.labels[row]] for row in rows}


def test_study__tunes_on_images_that_are_given(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out, photos = tmp_path / "study", make_photos(tmp_path / "photos", classes=2)
    words = ["--rows", "DHVT-T", "--data", photos, "--output", out, "--workers", "0", "--device", "cpu"]
    assert call("study", "dhvt-table-1", *words) == 0
    (run,), (start,) = (out.glob(f"{place}/cells/*/run") for place in ("photos", f"{STARTS}/train"))
    assert settings_of(run)["classes"] is None
    assert settings_of(run)["data"] == str(photos)
    assert settings_of(run)["init"] == str(start.resolve())
    assert settings_of(start)["data"] == "digits"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["dhvt-table-1", "--scale", "full"],
            "DHVT-T, DHVT-S of dhvt-table-1 need the initial weights dhvt-t (a run of dhvt-table-9, DHVT-T, whose "
            "weights are not published) and dhvt-s (a run of dhvt-table-9, DHVT-S, whose weights are not published): "
            "give --init dhvt-t=RUN_OR_FILE dhvt-s=RUN_OR_FILE.",
        ),
        (
            ["dhvt-table-1", "--scale", "full", "--init", "dhvt-t=RUN"],
            "DHVT-S of dhvt-table-1 needs the initial weights dhvt-s",
        ),
        (
            ["drloc-table-5", "--scale", "full", "--columns", "SVHN"],
            "T2T-ViT-14, T2T-ViT-14 + L_drloc of drloc-table-5 need the initial weights t2t-vit-14 (the checkpoint of "
            "T2T-ViT-14 published by its authors, which timm lacks): give --init t2t-vit-14=RUN_OR_FILE, or exclude "
            "the rows that need it with --rows.",
        ),
        (["dhvt-table-1", "--scale", "full", "--init", "RUN"], "NAME one of dhvt-t, dhvt-s, got 'RUN'"),
        (["dhvt-table-1", "--scale", "full", "--init", "dhvt-t=a", "dhvt-t=b"], "'dhvt-t' is given twice"),
        (
            ["dhvt-table-1", "--scale", "full", "--rows", "DHVT-T", "--init", "dhvt-t=gone"],
            "--init: there is no file or run folder 'gone'",
        ),
        (["dhvt-table-1", "--init", "dhvt-t=RUN"], "--init needs --scale full"),
        (
            ["dhvt-table-1", "--data", "digits"],
            "--data: the initial weights are trained on digits at --scale tiny, so the models must be tested on other "
            "images",
        ),
        (["drloc-table-5", "--data", "DATA"], "no images"),
    ],
)
def test_study__says_what_is_wrong(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DATA").mkdir()
    assert said in failure(capsys, "study", *words)
    assert [path.name for path in tmp_path.rglob("*")] == ["DATA"]  # nothing is written before all is sound
