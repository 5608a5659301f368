"""Runs that go on where their images have moved, and images that are not theirs."""

import csv
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

import paucal
from cli.calls import QUICK, SMALL, TINY, call, failure, make_photos, make_scenes
from paucal.data.checking.survey import digest_of
from paucal.data.sources.opening import open_images
from paucal.data.splits.split_csv import require_same_images
from paucal.types import UserError
from tasks.detection.made import write_coco, write_voc

STOP = ["--time-limit", "0.01s"]
NARROW = ["--out-dim", "16", "--hidden-dim", "32", "--local-crops", "1"]
DETECTOR = ["--model", "test_resnet", "--init", "none", "--img-size", "96", "-b", "2", "-j", "0", "--steps", "6"]
DETECTOR += ["--pyramid-channels", "16", "--head-dim", "16", "--regions", "32", "--proposals", "64"]


def folder(root: Path) -> list[str]:
    return [str(make_photos(root / "photos"))]


def listed(root: Path) -> list[str]:
    photos = make_photos(root / "photos")
    rows = sorted((path.relative_to(photos).as_posix(), path.parent.name) for path in photos.rglob("*.png"))
    with (root / "labels.csv").open("w") as file:
        csv.writer(file).writerows([("image", "label"), *rows[::2], *rows[1::2]])
    return [str(root / "labels.csv"), "--data-root", str(photos)]


def packed(root: Path) -> list[str]:
    photos = make_photos(root / "photos")
    with zipfile.ZipFile(root / "photos.zip", "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, path.relative_to(photos))
    shutil.rmtree(photos)
    return [str(root / "photos.zip")]


def joined(root: Path) -> list[str]:
    return [os.pathsep.join(str(make_photos(root / name, seed=seed)) for seed, name in enumerate(("old", "new")))]


def scenes(root: Path) -> list[str]:
    return [str(make_scenes(root / "scenes"))]


def scene_folders(root: Path) -> list[str]:
    make_scenes(root, parts=("left", "right"))
    return ["--images", str(root / "left"), "--masks", str(root / "right")]


def boxes(root: Path) -> list[str]:
    return [str(write_voc(root / "set", 12))]


def boxes_in_json(root: Path) -> list[str]:
    return [str(write_coco(root / "set", 12))]


CASES = {
    "train": ([*TINY, "--epochs", "8"], [folder, listed, packed, joined]),
    "pretrain": ([*TINY, "--epochs", "1", "-b", "4", *NARROW], [packed]),
    "segment": ([*SMALL, "--crops", "2", "--epochs", "2"], [scenes, scene_folders]),
    "detect": (DETECTOR, [boxes, boxes_in_json]),
}


@pytest.mark.parametrize(("verb", "make"), [(verb, make) for verb, (_, made) in CASES.items() for make in made])
def test_run__goes_on_where_its_images_have_moved(verb, make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    data = make(before)
    assert call(verb, *data, *CASES[verb][0], *STOP, "--output", "run") == 130
    before.rename(after)
    message = failure(capsys, verb, "--resume", "run")
    assert f"of the run 'run' does not exist: give the new location, as in 'paucal {verb} --resume run " in message
    stored = yaml.safe_load(Path("run/config.yaml").read_text())
    moved = [word.replace(str(before), str(after)) for word in data]
    assert call(verb, "--resume", "run", *moved, *STOP) == 130
    again = yaml.safe_load(Path("run/config.yaml").read_text())
    changed = {name for name, value in again["settings"].items() if value != stored["settings"][name]}
    given = {word[2:].replace("-", "_") for word in data if word.startswith("--")}
    assert changed == given | ({"data"} if not data[0].startswith("--") else set())
    assert str(before) not in "".join(str(again["settings"][name]) for name in changed)
    if make is CASES[verb][1][0]:  # the stored place is read as the given one was
        assert call(verb, "--resume", "run", *STOP) == 130


def test_moved_run__has_the_weights_of_one_that_was_never_stopped(trained, tmp_path):
    photos = make_photos(tmp_path / "photos")  # those of the whole run
    assert call("train", photos, *QUICK, *STOP, "--output", tmp_path / "run") == 130
    photos = photos.rename(tmp_path / "elsewhere")
    paucal.train(photos, resume=tmp_path / "run", time_limit="1h")
    one, two = ((base / "run" / "model.safetensors").read_bytes() for base in (trained, tmp_path))
    assert one == two


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A stopped run on a folder of photos beside it."""
    base = tmp_path_factory.mktemp("stopped")
    photos = make_photos(base / "photos")
    assert call("train", photos, *QUICK, *STOP, "--output", base / "run") == 130
    return base


@pytest.mark.parametrize("change", ["missing", "more", "renamed", "other label", "renamed class"])
def test_images__that_are_not_those_of_the_run_are_refused(change, stopped, tmp_path, capsys):
    photos = shutil.copytree(stopped / "photos", tmp_path / "photos")
    first, second = photos / "class0/3.png", photos / "class1/new.png"
    if change == "missing":
        first.unlink()
    elif change == "more":
        shutil.copy(first, second)
    elif change == "renamed":
        first.rename(photos / "class0/3a.png")
    elif change == "other label":
        first.rename(second)
    else:
        (photos / "class0").rename(photos / "class3")
    config = (stopped / "run/config.yaml").read_bytes()
    message = failure(capsys, "train", "--resume", stopped / "run", photos)
    assert {"more": "class1/new.png", "renamed class": "class0/0.png"}.get(change, "class0/3.png") in message
    assert (stopped / "run/config.yaml").read_bytes() == config


def test_images__of_equal_names_in_another_order_or_content_are_refused(tmp_path):
    photos = make_photos(tmp_path / "photos", classes=2, each=4)
    images = open_images(photos)
    digests = [digest_of(images.store, index).hex() for index in range(len(images))]
    names = [images.classes[label] for label in images.labels]
    rows = [list(row) for row in zip(images.keys, images.labels, names, ["train"] * 8, digests, strict=True)]

    def check(rows: list[list], columns: int = 5) -> None:
        header = ["key", "label", "class", "split", "digest"]
        with (tmp_path / "split.csv").open("w", newline="") as file:
            csv.writer(file).writerows(row[:columns] for row in (header, *rows))
        require_same_images(tmp_path / "split.csv", images)

    check(rows)
    check(rows, columns=4)
    with pytest.raises(
        UserError, match=r"image 3 of .*photos is 'class0/2.*, but image 3 of the run is 'class0/3.png'"
    ):
        check([*rows[:2], rows[3], rows[2], *rows[4:]])
    with pytest.raises(UserError, match=r"image 8 of .*photos is 'class1/3.png', but image 8 of the run is none"):
        check(rows[:-1])
    with pytest.raises(UserError, match=r"image 9 of .*photos is 'none', but image 9 of the run is 'more.png'"):
        check([*rows, ["more.png", 0, "class0", "train", ""]])
    with pytest.raises(UserError, match=r"'class0/1.png' has another label in .*photos than in the run"):
        check([rows[0], [rows[1][0], 1, *rows[1][2:]], *rows[2:]])
    Image.fromarray(np.zeros((20, 24, 3), np.uint8)).save(photos / "class1/2.png")
    check(rows, columns=4)
    with pytest.raises(UserError, match=r"'class1/2.png' has other content in .*photos than in the run"):
        check(rows)
