"""`paucal study` of rows that are tuned at more pixels, on the images that they have learned at fewer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.calls import call, failure, make_photos
from cli.studied import rows_of, settings_of, shrink
from paucal.studies.study import Architecture, Model, Study, Teacher
from paucal.verbs.compare.grid import STARTS

NAME = "lvvit-table-5"


@pytest.fixture(autouse=True)
def shrunk(monkeypatch):
    """Leave of the tiny scale what shows that everything is made: a block, few pixels, an epoch."""
    shrink(monkeypatch, [NAME], _shrunk)


def _shrunk(study: Study) -> Study:
    tiny = study.scales["tiny"]
    assert tiny.start_training is not None
    few = {"batch_size": 8, "val_fraction": 0.25, "test_fraction": 0.25}
    teacher = Teacher("resnet10t", ("channels=[8,8,16,16]", "stem_width=8"), epochs=12, lr=5e-3)
    training = replace(tiny.start_training, epochs=1, side=16, set={**tiny.start_training.set, "batch_size": 8})
    scale = replace(tiny, epochs=1, side=24, start_training=training, teacher=teacher, set={**tiny.set, **few})
    return replace(study, scales={"tiny": scale}, models={name: _small(one) for name, one in study.models.items()})


def _small(model: Model) -> Model:
    if model.standin is None:
        return model
    args = [word for word in model.standin.args if not word.startswith("depth=")]
    return replace(model, standin=Architecture(model.standin.name, (*args, "depth=1")))


def runs_of(out: Path, place: str) -> dict[str, Path]:
    return {path.parent.name.partition("-seed")[0]: path for path in out.glob(f"{place}/cells/*/run")}


@pytest.mark.slow
def test_study__tunes_at_more_pixels_what_has_learned_the_same_images(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out, photos = tmp_path / "study", make_photos(tmp_path / "photos", classes=2)
    words = ["study", NAME, "--data", photos, "--output", out, "--workers", "0", "--device", "cpu"]
    assert "read the label maps of a teacher, which must be trained first" in failure(capsys, *words, "--jobs", "0")
    assert call(*words, "--rows", "CaiT") == 0  # which has no maps, and the parts of those that have
    assert "first their initial weights (cait), on the same images at 16 pixels" in capsys.readouterr().out
    before = runs_of(out, "photos")
    assert call(*words) == 0
    rows, starts = runs_of(out, "photos"), runs_of(out, f"{STARTS}/train")
    assert rows["CaiT"] == before["CaiT"]
    assert (rows.keys(), starts.keys()) == ({"LV-ViT", "CaiT"}, {"lvvit-m", "cait"})
    (teacher,) = runs_of(out, "teacher").values()
    parts = (teacher / "split.csv").read_text()
    for row, start, labels in (("LV-ViT", "lvvit-m", str(out / "maps")), ("CaiT", "cait", None)):
        tuned, learned = settings_of(rows[row]), settings_of(starts[start])
        assert tuned["init"] == str(starts[start].resolve())
        assert (tuned["img_size"], learned["img_size"]) == ([24], [16])
        assert tuned["labels"] == learned["labels"] == labels
        assert tuned["method"] == learned["method"] == ("token-labeling" if labels else "supervised")
        # What a row is tested on has been seen by neither its start nor the teacher of its maps.
        assert (rows[row] / "split.csv").read_text() == (starts[start] / "split.csv").read_text() == parts
        remarks = " ".join(json.loads((rows[row] / "summary.json").read_text())["remarks"])
        assert "100 % of the parameters" in remarks
    measured = rows_of(out)
    assert {measured[row, "top-1 at 384"]["seeds"] for row in rows} == {"1"}
