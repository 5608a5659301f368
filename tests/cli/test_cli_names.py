"""File and folder names that are odd, missing or already taken."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paucal.cli.main import main

QUICK = ["--img-size", "16", "--epochs", "1", "-j", "0", "--model", "vit_mini", "--model-args", "depth=1"]


def make_photos(root: Path, seed: int = 0) -> Path:
    """Two classes, one with a name that rich would read as markup; neither it nor the files are named in UTF-8."""
    generator = np.random.default_rng(seed)
    for label, name in enumerate(("c\udce9t [bold]", "dog")):
        folder = root / name
        folder.mkdir(parents=True)
        for number in range(8):
            pixels = generator.normal(60 + 120 * label, 20, (20, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "new.png")
            os.rename(folder / "new.png", os.fsencode(folder) + b"/caf\xe9%d.png" % number)
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("trained")
    try:
        photos = make_photos(base / "photos[" / "x]test")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert main(["train", str(photos), *QUICK, "--output", str(base / "run")]) == 0
    return base


def test_train__survives_names_that_are_no_utf8_and_paths_that_look_like_markup(trained):
    run = trained / "run"
    assert "caf\\udce9" in (run / "evaluation" / "test" / "predictions.csv").read_text(encoding="utf-8")
    assert json.loads((run / "model.json").read_text(encoding="utf-8"))["classes"] == ["cét [bold]", "dog"]
    for file in run.rglob("*"):
        if file.suffix in (".csv", ".json", ".yaml", ".html", ".txt", ".log"):
            file.read_text(encoding="utf-8")


def test_check__finds_a_runs_own_images_by_names_that_are_no_utf8(trained, capsys):
    photos = str(trained / "photos[" / "x]test")
    assert main(["train", photos, *QUICK, "--split", str(trained / "run" / "split.csv"), "--print-config"]) == 0
    assert main(["check", str(trained / "run" / "split.csv"), "--data-root", photos]) == 0
    assert "16 images, 2 classes" in capsys.readouterr().out


def test_predict__writes_names_that_are_no_utf8(trained, tmp_path):
    photos = trained / "photos[" / "x]test" / "dog"
    assert main(["predict", str(trained / "run"), str(photos), "--output", str(tmp_path / "p.csv")]) == 0
    with (tmp_path / "p.csv").open(encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert all(Path(row["path"]).is_file() for row in rows)


def test_predict__writes_json_that_any_program_reads(trained, tmp_path):
    photos = trained / "photos[" / "x]test" / "dog"
    assert (
        main(["predict", str(trained / "run"), str(photos), "--format", "json", "--output", str(tmp_path / "p")]) == 0
    )
    rows = json.loads((tmp_path / "p").read_text(encoding="utf-8"))
    assert all(Path(row["path"]).is_file() for row in rows)


def test_predict__wants_a_folder_before_it_begins(trained, tmp_path, capsys):
    output = tmp_path / "none" / "p.csv"
    assert main(["predict", str(trained / "run"), str(trained), "--output", str(output)]) == 2
    assert "there is no folder for" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["eval", "predict"])
def test_devices__that_are_not_there_are_one_sentence(trained, capsys, verb):
    words = [str(trained)] if verb == "predict" else []
    assert main([verb, str(trained / "run"), *words, "--device", "cuda:99"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "the device 'cuda:99' cannot be used" in lines[0]


def test_eval__of_a_folder_called_test_leaves_the_runs_own_test_alone(trained, tmp_path):
    own = trained / "run" / "evaluation" / "test" / "metrics.json"
    before = own.read_bytes()
    for name in ("a", "b"):
        make_photos(tmp_path / name / "test", seed=1)
    assert main(["eval", str(trained / "run"), str(tmp_path / "a" / "test"), str(tmp_path / "b" / "test")]) == 0
    assert own.read_bytes() == before
    for name in ("a-test", "b-test"):
        assert json.loads((trained / "run" / "evaluation" / name / "metrics.json").read_text())["images"] == 16


def test_eval__leaves_out_unreadable_images_where_told_to(trained, tmp_path, capsys):
    photos = make_photos(tmp_path / "more")
    (photos / "dog" / "broken.png").write_bytes(b"no picture")
    assert main(["eval", str(trained / "run"), str(photos)]) == 2
    assert "--on-bad-image skip" in capsys.readouterr().err
    assert main(["eval", str(trained / "run"), str(photos), "--on-bad-image", "skip"]) == 0
