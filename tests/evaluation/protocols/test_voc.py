"""PASCAL VOC 2007: several labels for an image, below the data root or in a folder of its own."""

import numpy as np
import pytest
from PIL import Image

from evaluation.protocols.test_evaluate import OPTIONS, subject
from paucal.evaluation.protocols import data as data_module
from paucal.evaluation.protocols.evaluate import evaluate_backbone
from paucal.metrics.measures import value_of
from paucal.runner.console import SilentConsole
from paucal.types import UserError
from paucal.verbs.eval.images import open_data
from paucal.verbs.eval.settings import EvalSettings


@pytest.fixture
def folder(tmp_path):
    """VOC2007 below a data root, as its two archives unpack over each other."""
    return unpack(tmp_path / data_module.VOC_FOLDER)


def unpack(folder):
    (folder / "JPEGImages").mkdir(parents=True)
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number, (part, count) in enumerate((("train", 24), ("val", 12), ("test", 12))):
        names = [f"{number}{i:05d}" for i in range(count)]
        for name in names:
            Image.fromarray(generator.integers(0, 255, (18, 20, 3), dtype=np.uint8)).save(
                folder / "JPEGImages" / f"{name}.jpg"
            )
        for k, kind in enumerate(data_module.VOC_CLASSES):
            marks = [("1", "-1", "0")[(i + k) % 3] for i in range(count)]
            lines = [f"{name} {mark:>2}" for name, mark in zip(names, marks, strict=True)]
            (folder / "ImageSets" / "Main" / f"{kind}_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_voc__has_several_labels_per_image_and_eleven_point_map(folder, monkeypatch):
    assert data_module.is_voc2007(folder)
    data = data_module.open_voc2007(folder)
    assert data.counts() == {"train": 24, "val": 12, "test": 12}
    assert data.labels.shape == (48, 20)
    assert data.labels[0].tolist()[:4] == [1, 0, -1, 1]
    monkeypatch.setattr(data_module, "VOC_CLASSES", data_module.VOC_CLASSES[:3])  # as each class is fitted apart
    data = data_module.open_voc2007(folder)
    (found,) = evaluate_backbone(subject(), data, ["logistic"], OPTIONS)
    assert found.line.score == "11-point mAP"
    assert 0 < value_of(found.measure, 12) <= 1
    with pytest.raises(UserError, match="have several labels, which only the protocols logistic and corr"):
        evaluate_backbone(subject(), data, ["knn", "logistic"], OPTIONS)


def test_voc__says_what_is_missing_or_damaged(folder):
    (folder / "JPEGImages" / "200003.jpg").unlink()
    with pytest.raises(UserError, match=r"200003.jpg is missing: unpack both archives"):
        data_module.open_voc2007(folder)
    (folder / "ImageSets" / "Main" / "cat_val.txt").write_text("../../secret 1\n")
    with pytest.raises(UserError, match="does not list images of VOC2007"):
        data_module.open_voc2007(folder)
    (folder / "ImageSets" / "Main" / "cat_val.txt").write_text("100000 7\n")
    with pytest.raises(UserError, match="is not a list file of VOC2007"):
        data_module.open_voc2007(folder)


def test_name__finds_it_below_the_data_root(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name = open_data("voc2007", None, EvalSettings(data_root=str(tmp_path)), SilentConsole())
    by_folder = open_data(str(folder), None, EvalSettings(), SilentConsole())
    for data in (by_name, by_folder):
        assert (data.name, data.metric, data.n_classes) == ("voc2007", "map11", 20)
        assert data.images.location == str(folder)


def test_name__says_what_to_fetch_where_it_is_not(tmp_path):
    with pytest.raises(UserError) as error:
        open_data("voc2007", None, EvalSettings(data_root=str(tmp_path)), SilentConsole())
    assert f"'voc2007' is not in {tmp_path}: give --download, or put VOCtrainval_06-Nov-2007.tar" in str(error.value)


def test_download__asks_torchvision_for_both_archives(tmp_path, monkeypatch):
    asked = []

    def fetch(root, year, image_set, download):
        asked.append((root, year, image_set, download))
        if image_set == "test":
            unpack(tmp_path / data_module.VOC_FOLDER)

    monkeypatch.setattr(data_module, "VOCDetection", fetch)
    assert data_module.find_voc2007(tmp_path, download=True) == tmp_path / "VOCdevkit" / "VOC2007"
    assert asked == [(str(tmp_path), "2007", part, True) for part in ("trainval", "test")]
    data_module.find_voc2007(tmp_path, download=True)
    assert len(asked) == 2  # what is there is not fetched again


def test_download__that_fails_is_one_sentence(tmp_path, monkeypatch):
    def fetch(*_, **__):
        raise OSError("<urlopen error no route>")

    monkeypatch.setattr(data_module, "VOCDetection", fetch)
    with pytest.raises(UserError, match=r"could not be downloaded \(<urlopen error no route>\); try again, or put"):
        data_module.find_voc2007(tmp_path, download=True)
