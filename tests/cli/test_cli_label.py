"""From a folder of photos to a model trained on a teacher's token labels, with commands alone."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cli.calls import LVVIT, PLAIN, TEACHER, WIDE, call, failure, make_photos
from paucal.data.maps.store import MapWriter
from paucal.runs.lock import lock_folder
from paucal.verbs.label import launch

VIT = ["--model", "vit_mini", "--model-args", "depth=1", "embed_dim=32", "patch_size=2"]
SHORT = [*PLAIN, "--epochs", "2"]


def train(base: Path, *flags) -> list:
    return ["train", base / "photos", *SHORT, "--labels", base / "maps", *flags]


def test_label__writes_one_map_per_image(labelled):
    index = json.loads((labelled / "maps" / "index.json").read_text())
    assert index["classes"] == ["class0", "class1", "class2"]
    assert index["grid"] == [8, 8]  # the teacher looks at 64 pixels, through a stride of 8
    assert index["top"] == 3  # there are no five classes
    split = list(csv.DictReader((labelled / "teacher" / "split.csv").read_text().splitlines()))
    assert sorted(index["trained_on"]) == sorted(row["key"] for row in split if row["split"] == "train")
    values, indices = (np.load(labelled / "maps" / name) for name in ("values.npy", "indices.npy"))
    assert values.shape == indices.shape == (36, 3, 8, 8)
    truth = [int(key.split("/")[0][-1]) for key in index["keys"]]
    assert (indices[:, 0].reshape(36, -1) == np.array(truth)[:, None]).mean() > 0.9


def test_label__goes_on_where_it_was_interrupted(labelled, tmp_path, monkeypatch, capsys):
    command = ["label", labelled / "photos", "--teacher", labelled / "teacher", "--output", tmp_path / "maps"]
    command += ["--img-size", "64", "-b", "10"]
    stored, calls = MapWriter.write, []

    def stops_in_the_third(self, *arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        stored(self, *arguments)

    monkeypatch.setattr(MapWriter, "write", stops_in_the_third)
    assert call(*command) == 130
    assert "repeat the same call to continue" in capsys.readouterr().out.replace("\n", " ")
    assert np.load(tmp_path / "maps" / "done.npy").sum() == 20
    assert "unfinished (20 of 36)" in failure(
        capsys, *train(labelled, *VIT, "--method", "relabel"), "--labels", tmp_path / "maps"
    )
    written = []
    monkeypatch.setattr(MapWriter, "write", lambda self, at, *rest: (written.extend(at), stored(self, at, *rest)))
    assert call(*command) == 0
    assert written == list(range(20, 36))
    for name in ("values.npy", "indices.npy"):
        found, whole = np.load(tmp_path / "maps" / name), np.load(labelled / "maps" / name)
        assert np.allclose(found.astype(float), whole.astype(float), atol=2e-2), name


def test_label__refuses_a_teacher_that_knows_too_little(labelled, tmp_path, capsys):
    assert (
        call(
            "train", labelled / "photos", *PLAIN, *TEACHER, "--epochs", "1", "--lr", "1e-9", "--output", tmp_path / "t"
        )
        == 0
    )
    words = ["label", labelled / "photos", "--teacher", tmp_path / "t", "--output", tmp_path / "maps"]
    assert "below --min-accuracy 0.99, so the maps would be mostly wrong" in failure(
        capsys, *words, "--min-accuracy", "0.99"
    )
    assert not (tmp_path / "maps").exists()
    assert call(*words, "--min-accuracy", "0") == 0


def test_label__refuses_what_is_no_teacher(labelled, tmp_path, capsys):
    photos, output = labelled / "photos", ["--output", tmp_path / "maps"]
    assert "neither a run folder nor a timm model" in failure(capsys, "label", photos, "--teacher", "nobody", *output)
    other = make_photos(tmp_path / "other", classes=4, **WIDE)
    message = failure(capsys, "label", other, "--teacher", labelled / "teacher", *output)
    assert "does not know the class 'class3'" in message
    message = failure(capsys, "label", photos, "--teacher", labelled / "teacher", *output, "--top-k", "0")
    assert "--top-k is 0, expected a number between 1 and" in message
    message = failure(capsys, "label", photos, "--teacher", labelled / "teacher", *output, "--min-accuracy", "2")
    assert "--min-accuracy is 2" in message
    for words, expected in (
        (["--img-size", "0"], "--img-size is '0', expected one side or height and width"),
        (["--img-size", "32", "32", "32"], "--img-size is '32 32 32'"),
        (["--picture", tmp_path / "maps.jpg"], "must end in .png: give another name"),
        (["--device", "tpu9"], "the device 'tpu9' cannot be used"),
    ):
        assert expected in failure(capsys, "label", photos, "--teacher", labelled / "teacher", *output, *words)
    assert not (tmp_path / "maps").exists()


def test_label__never_overwrites_other_maps(labelled, tmp_path, capsys):
    other = make_photos(tmp_path / "other", seed=1, **WIDE)
    before = (labelled / "maps" / "index.json").read_bytes()
    message = failure(capsys, "label", other, "--teacher", labelled / "teacher", "--output", labelled / "maps")
    assert "contains label maps of other images or of another teacher" in message
    assert (labelled / "maps" / "index.json").read_bytes() == before


def test_label__is_done_by_one_process_at_a_time(labelled, tmp_path, capsys, monkeypatch):
    maps = tmp_path / "maps"
    words = ["label", labelled / "photos", "--teacher", labelled / "teacher", "--output", maps]
    inner, whole = [], launch.write_maps

    def write_while_another_tries(*arguments):
        inner.append(call(*words))
        whole(*arguments)

    monkeypatch.setattr(launch, "write_maps", write_while_another_tries)
    assert call(*words) == 0
    assert inner == [2]
    assert (
        f"the folder of label maps {str(maps)!r} is being written by process {os.getpid()}" in capsys.readouterr().err
    )
    assert sorted(file.name for file in maps.iterdir()) == ["done.npy", "index.json", "indices.npy", "values.npy"]
    assert np.load(maps / "done.npy").all()


def test_label__refuses_before_its_work_what_another_process_writes(labelled, tmp_path, capsys, monkeypatch):
    maps = tmp_path / "maps"
    words = ["label", labelled / "photos", "--teacher", labelled / "teacher", "--output", maps]
    monkeypatch.setattr("paucal.verbs.label.launch.load_images", lambda *_: pytest.fail("images were read"))
    with lock_folder(maps, "it"):
        assert "is being written by process" in failure(capsys, *words)
        assert [file.name for file in maps.iterdir()] == ["lock.json"]
    monkeypatch.undo()
    (maps / "lock.json").write_text("{}")  # of a process that was killed, long ago
    os.utime(maps / "lock.json", (0, 0))
    assert call(*words) == 0
    assert not (maps / "lock.json").exists()


def test_label__ends_where_another_process_has_taken_over(labelled, tmp_path, capsys, monkeypatch):
    maps, whole = tmp_path / "maps", launch.write_maps

    def write_without_lock(*arguments):
        (maps / "lock.json").unlink()
        monkeypatch.setattr("paucal.runs.lock.RENEWAL_SECONDS", 0.0)  # look at every batch
        whole(*arguments)

    monkeypatch.setattr(launch, "write_maps", write_without_lock)
    words = ["label", labelled / "photos", "--teacher", labelled / "teacher", "--output", maps]
    assert "has taken over the folder of label maps" in failure(capsys, *words, "-b", "4")
    assert 0 < np.load(maps / "done.npy").sum() <= 4


@pytest.mark.parametrize(
    ("flags", "losses"),
    [
        ([*LVVIT, "--method", "token-labeling"], {"class", "tokens"}),
        ([*VIT, "--method", "token-labeling", "--add", "drloc"], {"class", "tokens", "drloc"}),
        pytest.param([*VIT, "--method", "relabel"], {"class"}, marks=pytest.mark.slow),
    ],
    ids=["lvvit", "vit with drloc", "relabel"],
)
def test_train__learns_from_the_maps_and_can_be_judged(labelled, tmp_path, flags, losses, capsys):
    run = tmp_path / "run"
    assert call(*train(labelled, *flags, "--output", run)) == 0
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    assert {name for name in rows[0] if name.startswith("train_")} >= {f"train_{name}" for name in losses}
    assert ("train_tokens" in rows[0]) == ("tokens" in losses)
    assert call("eval", run) == 0
    metrics = json.loads((run / "evaluation" / "test" / "metrics.json").read_text())
    assert metrics["scores"]["top1"]["value"] == json.loads((run / "summary.json").read_text())["test_top1"]
    assert call("predict", run, labelled / "photos" / "class0" / "0.png") == 0


def test_label__converts_published_maps_that_can_be_trained_with(labelled, tmp_path, capsys):
    published, names = tmp_path / "published", tmp_path / "names.txt"
    names.write_text("class2\nclass0\nclass1\n")  # in the order of the numbers below
    for label, number in ((0, 1), (1, 2), (2, 0)):
        (published / f"class{label}").mkdir(parents=True)
        for image in range(12):
            one_map = torch.stack((torch.full((1, 4, 4), 9.0), torch.full((1, 4, 4), float(number)))).half()
            torch.save(one_map, published / f"class{label}" / f"{image}.pt")
    words = ["label", labelled / "photos", "--from-published", published, "--output", tmp_path / "maps"]
    short = tmp_path / "short.txt"
    short.write_text("class0\nclass1\n")
    message = failure(capsys, *words, "--published-classes", short)
    assert "has a class 'class2' that is not among the 2 names" in message
    assert "the class with the highest mean in the teacher's map is correct for 0.0 % of the images" in failure(
        capsys, *words
    )
    assert not (tmp_path / "maps").exists()
    assert call(*words, "--published-classes", names) == 0
    assert "correct for 100.0 % of" in capsys.readouterr().out
    run = tmp_path / "run"
    flags = [*VIT, "--method", "token-labeling", "--labels", tmp_path / "maps", "--output", run]
    assert call("train", labelled / "photos", *SHORT, *flags) == 0
    assert (run / "model.safetensors").exists()
    assert "give either --teacher or --from-published" in failure(capsys, *words, "--teacher", labelled / "teacher")
    assert "give either --teacher or --from-published" in failure(
        capsys, "label", labelled / "photos", "--output", tmp_path / "m"
    )


def test_train__on_some_of_the_classes_learns_from_the_maps_of_all(labelled, tmp_path):
    (tmp_path / "two.txt").write_text("class1\nclass0\n")
    run = tmp_path / "run"
    flags = [*VIT, "--method", "token-labeling", "--classes", tmp_path / "two.txt"]
    assert call(*train(labelled, *flags, "--output", run)) == 0
    assert json.loads((run / "model.json").read_text())["classes"] == ["class0", "class1"]


@pytest.mark.slow
def test_train__is_the_same_after_a_stop(labelled, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    flags = [*LVVIT, "--method", "token-labeling"]
    assert call(*train(labelled, *flags, "--output", whole)) == 0
    assert call(*train(labelled, *flags, "--output", stopped, "--time-limit", "0.01s")) == 130
    assert not (stopped / "summary.json").exists()
    assert call("train", "--resume", stopped, "--time-limit", "1h") == 0
    one, two = ((run / "model.safetensors").read_bytes() for run in (whole, stopped))
    assert one == two


def test_train__without_fitting_maps_is_refused(labelled, tmp_path, capsys, monkeypatch):
    photos, method = labelled / "photos", [*VIT, "--method", "token-labeling", "--output", tmp_path / "run"]
    message = failure(capsys, "train", photos, *SHORT, *method)
    assert "--method token-labeling learns from label maps" in message
    assert "there are no label maps in" in failure(capsys, *train(labelled, *method, "--labels", tmp_path))
    # The same names, but other pixels.
    changed = make_photos(tmp_path / "changed", seed=1, **WIDE)
    message = failure(capsys, "train", changed, *SHORT, *method, "--labels", labelled / "maps")
    assert "has changed since its label map was made" in message
    more = make_photos(tmp_path / "more", each=14, **WIDE)
    for label in range(3):
        for number in range(12):
            name = f"class{label}/{number}.png"
            shutil.copy(photos / name, more / name)
    message = failure(capsys, "train", more, *SHORT, *method, "--labels", labelled / "maps")
    assert "has no map of" in message or "trained on" in message
    message = failure(capsys, "train", photos, *SHORT, *VIT, "--method", "supervised", "--labels", labelled / "maps")
    assert "--labels has no effect with --method supervised: give --method token-labeling" in message
    assert not (tmp_path / "run").exists()


def test_train__on_the_maps_of_a_teacher_that_saw_the_test_images_is_refused(labelled, tmp_path, capsys):
    message = failure(
        capsys, *train(labelled, *VIT, "--method", "token-labeling"), "--seed", "2", "--output", tmp_path / "r"
    )
    assert "of the images that this run keeps for validation and test" in message
    assert not (tmp_path / "r").exists()


@pytest.mark.usefixtures("drawn_pictures")
def test_label__draws_a_picture_of_maps_that_are_there(labelled, tmp_path, capsys):
    words = ["label", labelled / "photos", "--teacher", labelled / "teacher", "--output", labelled / "maps"]
    assert call(*words, "--img-size", "64", "--picture", tmp_path / "new" / "maps.png") == 0
    with Image.open(tmp_path / "new" / "maps.png") as picture:
        assert picture.format == "PNG"
        assert np.asarray(picture.convert("RGB")).std() > 10


def test_eval__counts_several_right_answers(labelled, tmp_path, capsys):
    teacher = labelled / "teacher"
    rows = list(csv.DictReader((teacher / "evaluation/test/predictions.csv").read_text().splitlines()))
    order = sorted(rows, key=lambda row: (row["key"].rpartition("/")[2], row["key"]))
    right = [[int(row["predicted"][-1])] for row in order]
    right[0], right[1] = [], [(right[1][0] + 1) % 3]
    (tmp_path / "real.json").write_text(json.dumps(right))
    assert call("eval", teacher, "--real-labels", tmp_path / "real.json", "--output", tmp_path / "out") == 0
    assert "of 5 images (1 without a correct class was left out)" in capsys.readouterr().out
    stored = json.loads((tmp_path / "out" / "real_labels.json").read_text())
    assert stored["top1"]["value"] == pytest.approx(4 / 5)
    words = ["eval", teacher, "--real-labels", tmp_path / "real.json"]
    assert "needs --protocol classification" in failure(capsys, *words, "--protocol", "knn")
    (tmp_path / "real.json").write_text(json.dumps([*right, [0]]))
    words = ["eval", teacher, labelled / "photos", *words[2:]]
    message = failure(capsys, *words, "--output", tmp_path / "more")
    assert "labels for 7 images, but 6 are evaluated" in message  # the run has learned from the others
