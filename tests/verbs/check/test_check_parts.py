"""What a check says of parts and sizes: those that the data has, those that a run would cut, and what a run chooses."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import paucal
from cli.calls import call, make_photos, make_scenes
from paucal.data.splits.split import make_split
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import SilentConsole
from paucal.tasks.classification.assembly import assemble
from tasks.detection.made import write_coco


def flat(root: Path) -> Path:
    for path in sorted(make_photos(root, 1, 8).rglob("*.png")):
        shutil.move(path, root / path.name)
    (root / "class0").rmdir()
    return root


def parted(root: Path, *parts: str) -> Path:
    for seed, part in enumerate(parts):
        make_photos(root / part, 2, 8, seed=seed)
    return root


def boxes(root: Path) -> Path:
    return write_coco(root, 20).parent


@pytest.mark.parametrize(
    ("make", "words", "parts"),
    [
        (
            lambda root: make_photos(root, 2, 20),
            "as paucal train would divide them",
            {"train": 28, "val": 4, "test": 8},
        ),
        (
            boxes,
            "as paucal detect would divide them",
            {"train": 14, "val": 2, "test": 4},
        ),
        (lambda root: make_scenes(root, 20), "as paucal segment would divide them", {"train": 14, "val": 2, "test": 4}),
        (lambda root: parted(root, "train", "test"), "the data's own", {"train": 16, "test": 16}),
        (lambda root: parted(root, "test"), "the data's own", {"test": 16}),
        (lambda root: parted(root, "train"), "as paucal train would divide them", {"train": 10, "val": 2, "test": 4}),
        (flat, "not divided", {"train": 8}),
    ],
    ids=["classes", "boxes", "masks", "parts", "test alone", "train alone", "no labels"],
)
def test_parts__are_the_datas_own_or_those_that_its_verb_would_cut(tmp_path: Path, make, words, parts):
    found = paucal.check(make(tmp_path / "set"))
    assert (found.facts["parts_are"], found.facts["parts"]) == (words, parts)
    if "cut" in words:
        again = make_split(found.checked.images).counts()
        assert {part: again[part] for part in ("train", "val", "test")} == parts


def test_size__in_the_middle_is_that_of_the_medians(tmp_path: Path, capsys):
    sizes = [(40, 100), (100, 40), (50, 50), (30, 60), (60, 31)]
    for number, size in enumerate(sizes * 2):
        path = tmp_path / f"{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    assert call("check", tmp_path) == 0
    widths, heights = (int(np.median([size[place] for size in sizes])) for place in (0, 1))
    assert f"medians {widths} x {heights}, images from 30 x 60 to" in " ".join(capsys.readouterr().out.split())


def test_small_images__are_measured_by_the_size_that_train_chooses(tmp_path: Path):
    make_photos(tmp_path / "set", 2, 10, size=(250, 187))
    make_photos(tmp_path / "small", 1, 2, size=(20, 18), seed=1)
    for path in (tmp_path / "small").rglob("*.png"):
        shutil.move(path, tmp_path / f"set/class0/small{path.name}")
    (chosen,) = (
        assemble(TrainSettings(data=str(tmp_path / "set")), {}, SilentConsole().progress).settings.img_size or []
    )
    found = paucal.check(tmp_path / "set").of("small-images")
    assert found is not None
    assert f"2 images of 22 are less than half as large as --img-size {chosen}, which paucal train" in found.text
    assert "--img-size" not in found.advice
    assert paucal.check(make_photos(tmp_path / "tiny", 2, 10, size=(30, 28))).of("small-images") is None
