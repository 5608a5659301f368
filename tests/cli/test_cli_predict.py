"""A finished run, judged again and used on images."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import paucal
from cli.calls import failure
from paucal.cli.main import main
from paucal.types import UserError


def test_eval__repeats_the_score_of_training(trained, capsys):
    before = json.loads((trained / "run/evaluation/test/metrics.json").read_text())
    assert main(["eval", str(trained / "run")]) == 0
    after = json.loads((trained / "run/evaluation/test/metrics.json").read_text())
    assert after["scores"]["top1"] == before["scores"]["top1"]
    assert after["scores"]["loss"]["value"] == pytest.approx(before["scores"]["loss"]["value"], rel=1e-5)
    assert main(["eval", str(trained / "run"), str(trained / "photos"), "--output", str(trained / "other")]) == 0
    named = json.loads((trained / "other" / "metrics.json").read_text())
    assert (named["images"], named["scores"]["top1"]) == (6, before["scores"]["top1"])  # its test images alone


def test_predict__gives_probabilities_for_files_folders_and_patterns(trained, capsys, tmp_path):
    photos = trained / "photos"
    words = [str(photos / "class0" / "0.png"), str(photos / "class1"), str(photos / "class2" / "1*.png")]
    assert main(["predict", str(trained / "run"), *words]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 1 + 12 + 3
    assert all(Path(row["path"]).is_file() for row in rows)
    for row in rows:
        shares = [float(row[f"p_class{k}"]) for k in range(3)]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert row["predicted"] == f"class{int(np.argmax(shares))}"
    output = tmp_path / "answers.json"
    assert main(["predict", str(trained / "run"), words[0], "--format", "json", "--output", str(output)]) == 0
    answer = json.loads(output.read_text())[0]
    assert answer["confidence"] == pytest.approx(float(rows[0]["confidence"]), rel=1e-4)


def test_predict__equals_the_python_interface(trained, capsys):
    path = trained / "photos" / "class1" / "3.png"
    model = paucal.load(trained / "run")
    shares = model.probabilities([Image.open(path)])
    assert shares.shape == (1, 3)
    main(["predict", str(trained / "run"), str(path)])
    row = next(csv.DictReader(capsys.readouterr().out.splitlines()))
    torch.testing.assert_close(
        shares[0], torch.tensor([float(row[f"p_class{k}"]) for k in range(3)]), rtol=1e-4, atol=1e-5
    )


def test_predict__passes_over_what_a_pattern_matches_beside_images(trained, tmp_path, capsys):
    shutil.copytree(trained / "photos" / "class0", tmp_path / "mixed")
    (tmp_path / "mixed" / "notes.txt").write_text("not an image")
    (tmp_path / "mixed" / "more").mkdir()
    assert main(["predict", str(trained / "run"), str(tmp_path / "mixed" / "*")]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + 12
    assert "2 matches of" in captured.err
    assert main(["predict", str(trained / "run"), str(trained / "photos" / "class*")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 36
    assert "matches 1 file, which is not an image" in failure(
        capsys, "predict", trained / "run", str(tmp_path / "mixed" / "*.txt")
    )
    shutil.copy(tmp_path / "mixed" / "notes.txt", tmp_path / "mixed" / "more.txt")
    assert "2 files, but no image" in failure(capsys, "predict", trained / "run", str(tmp_path / "mixed" / "*.txt"))


def test_predict__takes_arrays_and_pictures_as_it_takes_files(trained):
    path = trained / "photos" / "class1" / "3.png"
    picture = Image.open(path).convert("RGB")
    array = np.asarray(picture)
    expected = paucal.predict(trained / "run", path)[0].shares
    for images in (picture, array, [array, picture], np.stack([array, array])):
        for row in paucal.predict(trained / "run", images):
            assert row.path is None
            torch.testing.assert_close(row.shares, expected)
    model = paucal.load(trained / "run")
    for images in (picture, array, [array]):
        torch.testing.assert_close(model.probabilities(images)[0], expected)
    grey = paucal.predict(trained / "run", array[..., 0])[0].shares
    torch.testing.assert_close(grey, paucal.predict(trained / "run", np.repeat(array[..., :1], 3, axis=2))[0].shares)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (None, "the images are of the type NoneType, expected files, folders or patterns"),
        (np.zeros((3, 20, 24), np.uint8), "image 1 cannot be used: the image has 24 channels"),
        (np.full((20, 24, 3), 0.5, np.float32), "image 1 cannot be used: "),
        ([np.zeros((20, 24, 3), np.uint8), b"x"], "image 2 is of the type bytes"),
        (
            "https://host/a.JPG?size=large",
            "'https://host/a.JPG?size=large' is a URL: download the image, and give the file.",
        ),
    ],
)
def test_predict__says_what_it_takes(images, message, trained):
    with pytest.raises(UserError) as problem:
        paucal.predict(trained / "run", images)
    assert message in str(problem.value)


def test_predict__of_a_url_says_to_fetch_it(trained, capsys):
    for url in ("http://host/a.png", "https://host/photos/b.jpeg", "s3://bucket/c.tif"):
        message = failure(capsys, "predict", trained / "run", url)
        assert message.endswith(f"files, but {url!r} is a URL: download the image, and give the file.")


def test_model__that_is_no_path_is_one_sentence(trained):
    for call in (paucal.load, paucal.load_segmenter, paucal.evaluate, paucal.export_model):
        for value in (None, ["runs/1"], 3):
            with pytest.raises(UserError, match=r"is of the type \w+, expected a path, such as 'runs/1'.$"):
                call(value)
    for call in (paucal.predict, paucal.explain_images, paucal.detect_objects):
        with pytest.raises(UserError, match=r"is of the type NoneType, expected a path, such as 'runs/1'.$"):
            call(None, [trained / "photos" / "class0" / "0.png"])
    with pytest.raises(UserError, match=r"^image 1 is a path \('a.jpg'\), expected PIL images or arrays"):
        paucal.load(trained / "run").probabilities(["a.jpg"])
