"""What `paucal predict` writes: top classes, features, a contact sheet; and how it goes on after an interruption."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import paucal
from cli.calls import call, failure, table
from paucal.data.sources.opening import open_images
from paucal.models import precision
from paucal.models.trained import TrainedModel, load_trained, save_trained
from paucal.runner.sheets import MAX_COLUMNS
from paucal.runs import RunFolder
from paucal.verbs.predict import launch, writing
from paucal.verbs.predict.writing import TILE_SIDE


@pytest.fixture
def many(trained, tmp_path):
    """36 photos in a folder of their own, and the run."""
    shutil.copytree(trained / "photos", tmp_path / "many")
    return tmp_path / "many"


def interrupted_after(monkeypatch, batches):
    """Let a model be interrupted after so many batches; returns the sizes of all that it was asked."""
    asked, whole = [], TrainedModel.probabilities

    def probabilities(self, images):
        if len(asked) == batches:
            raise KeyboardInterrupt
        asked.append(len(images))
        return whole(self, images)

    monkeypatch.setattr(TrainedModel, "probabilities", probabilities)
    return asked


def written(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_top_k__names_the_likeliest_classes_in_falling_order(trained, tmp_path, capsys):
    words = ["predict", trained / "run", trained / "photos" / "class1"]
    assert call(*words, "--output", tmp_path / "all.csv") == 0
    assert call(*words, "--output", tmp_path / "two.csv", "--top-k", 2) == 0
    everything, two = table(tmp_path / "all.csv"), table(tmp_path / "two.csv")
    assert list(two[0]) == ["path", "predicted", "confidence", "class_1", "p_1", "class_2", "p_2"]
    for full, short in zip(everything, two, strict=True):
        order = sorted(((float(full[f"p_class{k}"]), f"class{k}") for k in range(3)), reverse=True)
        assert [(float(short[f"p_{k}"]), short[f"class_{k}"]) for k in (1, 2)] == order[:2]
        assert short["predicted"] == short["class_1"]
    assert call(*words, "--top-k", 2, "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [list(row["probabilities"]) for row in told] == [[row["class_1"], row["class_2"]] for row in two]
    assert call(*words, "--output", tmp_path / "more.csv", "--top-k", 9) == 0
    assert "class_3" in table(tmp_path / "more.csv")[0]
    assert "--top-k is 0, expected" in failure(capsys, *words, "--top-k", 0)


def test_answers__are_written_as_labels(trained, many, tmp_path, capsys):
    """As folders of the predicted classes, and as a table, which `paucal train` reads."""
    assert call("predict", trained / "run", many, "--to", "folders", "--output", tmp_path / "sorted") == 0
    assert call("predict", trained / "run", many, "--to", "csv", "--output", tmp_path / "table") == 0
    for place in ("sorted", "table/labels.csv"):
        assert len(open_images(str(tmp_path / place))) == 36
    written = [path for path in (tmp_path / "sorted").rglob("*") if path.is_file()]
    by_bytes = {path.read_bytes(): path.parent.name for path in written}
    answers = {row.path: row.predicted for row in paucal.predict(trained / "run", many)}
    assert all(by_bytes[Path(path).read_bytes()] == answer for path, answer in answers.items())
    words = failure(
        capsys, "predict", trained / "run", "--watch", many, "--to", "csv", "--output", tmp_path / "watched"
    )
    assert "--watch: remove --to" in words
    assert not (tmp_path / "watched").exists()


def test_features__equal_a_naive_forward(trained, many, tmp_path):
    assert call("predict", trained / "run", many, "--features", tmp_path / "f.parquet", "-b", 5) == 0
    found = pq.read_table(tmp_path / "f.parquet")
    assert found.schema.field("features").type.value_type == "float"
    model = load_trained(trained / "run")
    transform = model.card.preprocessing.transform()
    paths = found["path"].to_pylist()
    assert paths == sorted(map(str, many.rglob("*.png")))
    views = torch.stack([transform(Image.open(path).convert("RGB"))[0] for path in paths])
    with torch.no_grad():
        naive = model.module.forward_head(model.module.forward_features(views), pre_logits=True)
    torch.testing.assert_close(torch.tensor(found["features"].to_pylist()), naive, rtol=1e-4, atol=1e-5)
    rows = paucal.predict(model, many, features=True)
    torch.testing.assert_close(torch.stack([row.features for row in rows]), naive, rtol=1e-4, atol=1e-5)
    assert paucal.predict(model, paths[0])[0].features is None
    mirrored = paucal.predict(trained / "run", paths[0], features=True, mirror=True)[0].features
    with torch.no_grad():
        other = model.module.forward_head(model.module.forward_features(views[:1].flip(-1)), pre_logits=True)
    torch.testing.assert_close(mirrored, (naive[0] + other[0]) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("torn", [0, 8, 60])
def test_interrupted__goes_on_and_writes_the_same_bytes(trained, many, tmp_path, monkeypatch, capsys, torn):
    (many / "class1" / "3.png").write_bytes(b"no image")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def words(folder):
        names = ["--output", folder / "a.csv", "--features", folder / "f.parquet", "--sheet", folder / "s.png"]
        return ["predict", trained / "run", many, *names, "-b", 4, "--on-bad-image", "skip"]

    assert call(*words(tmp_path / "a")) == 0
    assert "skipped 1 image that cannot be read" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        interrupted_after(patch, 5)
        assert call(*words(tmp_path / "b")) == 130
    assert "21 of 36 predictions are kept in" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "b" / "a.csv").exists()
    part = tmp_path / "b" / "a.csv.part" / "0000.arrow"
    if torn:
        os.truncate(part, part.stat().st_size - torn)  # killed: the mark of the end is missing, or more
    with monkeypatch.context() as patch:
        asked = interrupted_after(patch, 100)
        assert call(*words(tmp_path / "b")) == 0
    assert capsys.readouterr().err.count("skipped: ") == 1
    assert sum(asked) == 15 + (4 if torn > 8 else 0)
    assert written(tmp_path / "a") == written(tmp_path / "b")
    assert len(table(tmp_path / "b" / "a.csv")) == 35


def test_unfinished_answers__are_not_mixed_with_others(trained, many, tmp_path, monkeypatch, capsys):
    words = ["predict", trained / "run", many, "--output", tmp_path / "a.csv", "-b", 4]
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2)
        assert call(*words) == 130
    before = written(tmp_path / "a.csv.part")
    assert "another -b (4, now 5)" in failure(capsys, *words[:-1], 5)
    assert "another --mirror" in failure(capsys, *words, "--mirror")
    run = tmp_path / "other"
    shutil.copytree(trained / "run", run)
    card = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps(card | {"temperature": card["temperature"] * 1.1}))
    assert "another model" in failure(capsys, "predict", run, *words[2:])
    assert written(tmp_path / "a.csv.part") == before
    Image.new("RGB", (24, 20)).save(many / "class0" / "0.png")
    assert "or '" + str(many / "class0" / "0.png") + "' has changed since" in failure(capsys, *words)
    shutil.rmtree(tmp_path / "a.csv.part")
    assert call(*words) == 0
    assert not (tmp_path / "a.csv.part").exists()
    assert "exists already" in failure(capsys, *words)
    (tmp_path / "b.csv.part").mkdir()
    (tmp_path / "b.csv.part" / "letter.txt").write_text("mine")
    assert "contains 'letter.txt'" in failure(capsys, *words[:3], "--output", tmp_path / "b.csv")
    assert (tmp_path / "b.csv.part" / "letter.txt").read_text() == "mine"


def test_skipped_before__is_refused_where_skipping_is_no_longer_asked_for(trained, many, tmp_path, monkeypatch, capsys):
    (many / "class0" / "0.png").write_bytes(b"no image")
    words = ["predict", trained / "run", many, "--output", tmp_path / "a.csv", "-b", 4]
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2)
        assert call(*words, "--on-bad-image", "skip") == 130
    capsys.readouterr()
    assert call(*words) == 2
    assert "skip the image with --on-bad-image skip" in capsys.readouterr().err


def test_sheet__shows_each_class_from_the_surest_to_the_least_sure(trained, many, tmp_path, capsys):
    for number, level in enumerate((60, 130, 200)):  # a plain image of each class that is sure to be seen
        Image.new("RGB", (300, 300), (level,) * 3).save(many / f"plain{number}.png")
    assert call("predict", trained / "run", many, "--sheet", tmp_path / "s.png", "--output", tmp_path / "a.csv") == 0
    rows = table(tmp_path / "a.csv")
    classes = {row["predicted"] for row in rows}
    page = np.asarray(Image.open(tmp_path / "s.png"))
    height = page.shape[0] // len(classes)
    names = [row["predicted"] for row in rows]
    for number, name in enumerate(sorted(classes, key=lambda name: (-names.count(name), name))):
        members = sorted((row for row in rows if row["predicted"] == name), key=lambda row: -float(row["confidence"]))
        top = 6 + number * (22 + TILE_SIDE + 16 + 6) + 22
        first = np.asarray(Image.open(members[0]["path"]).convert("RGB"), dtype=float).mean()
        tile = page[top + TILE_SIDE // 2 - 20 : top + TILE_SIDE // 2 + 20, 6 : 6 + TILE_SIDE].astype(float).mean()
        assert tile == pytest.approx(first, abs=4)
        filled = [
            c
            for c in range(MAX_COLUMNS)
            if page[top + TILE_SIDE // 2, 6 + c * (TILE_SIDE + 6) + TILE_SIDE // 2].min() < 254
        ]
        assert len(filled) >= min(MAX_COLUMNS, len(members)) - 1  # a white one may be among them
    assert height >= TILE_SIDE
    assert "must end in .png or .jpg" in failure(
        capsys, "predict", trained / "run", many, "--sheet", tmp_path / "s.gif"
    )
    inside = failure(capsys, "predict", trained / "run", many, "--sheet", many / "s.png")
    assert "is inside the images" in inside
    assert "must end in .parquet" in failure(capsys, "predict", trained / "run", many, "--features", tmp_path / "f.csv")


def test_features__of_a_backbone_alone(trained, many, tmp_path, capsys):
    model = load_trained(trained / "run")
    bare = tmp_path / "bare"
    shutil.copytree(trained / "run", bare)
    model.module.reset_classifier(0)
    card = replace(model.card, classes=(), backbone=replace(model.card.backbone, num_classes=0))
    save_trained(RunFolder(bare), model.module, card)
    assert call("predict", bare, many, "--features", tmp_path / "bare.parquet") == 0
    assert capsys.readouterr().out == ""
    assert call("predict", trained / "run", many, "--features", tmp_path / "whole.parquet") == 0
    assert len(capsys.readouterr().out.splitlines()) == 37
    first, second = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("bare", "whole"))
    np.testing.assert_allclose(
        np.stack(first["features"].to_pylist()), np.stack(second["features"].to_pylist()), rtol=1e-5, atol=1e-6
    )
    assert "has no classifier" in failure(
        capsys, "predict", bare, many, "--features", tmp_path / "more.parquet", "--output", tmp_path / "a.csv"
    )


@pytest.mark.parametrize("older", [False, True])
def test_unfinished_answers__go_on_in_their_own_precision(trained, many, tmp_path, monkeypatch, older):
    """Another measurement, or answers of a version that did not store it, refuse nothing."""
    words = ["predict", trained / "run", many, "--output", tmp_path / "a.csv", "-b", 4]
    kept, real = [], launch.choose_precision_for_images

    def measured(model, asked, pictures, console):
        kept.append(asked)
        return (
            precision.EXPLICIT_CHOICES["32-true" if older else "bf16-mixed"]
            if asked is None
            else real(model, asked, pictures, console)
        )

    journal = writing.Journal
    with monkeypatch.context() as patch:
        patch.setattr(launch, "choose_precision_for_images", measured)
        if older:
            patch.setattr(
                writing,
                "Journal",
                lambda folder, n, about: journal(folder, n, {k: v for k, v in about.items() if k != "--precision"}),
            )
        interrupted_after(patch, 2)
        assert call(*words) == 130
    other = precision.EXPLICIT_CHOICES["bf16-mixed" if older else "32-true"]
    monkeypatch.setattr(launch, "choose_precision_for_images", lambda *a: other if a[1] is None else measured(*a))
    assert call(*words) == 0
    assert kept == [None, "32-true" if older else "bf16-mixed"]
