"""A run finds its images again: published sets, list files and class files, from any folder."""

import json
from pathlib import Path

import pytest
import yaml

from data.fake_sets import MAKE, picture
from paucal.cli.main import main
from paucal.methods.training_settings import TrainSettings
from paucal.runner.images import load_images, with_absolute_data_paths

QUICK = ["--img-size", "16", "--epochs", "1", "-j", "0", "--model", "vit_mini", "--model-args", "depth=1"]


@pytest.fixture
def there(tmp_path, monkeypatch) -> Path:
    """The working folder, with a data root, a list file and a class file."""
    (tmp_path / "sets").mkdir()
    MAKE["dtd"](tmp_path / "sets")
    lines = []
    for label, name in enumerate(("ant", "bee", "cow")):
        for row in range(5):
            picture(tmp_path / "wild" / name / f"{row}.png", 20 * label + row)
            lines.append(f"wild/{name}/{row}.png {label}")
    (tmp_path / "wild_train.txt").write_text("\n".join(lines[::2]) + "\n")
    (tmp_path / "wild_test.txt").write_text("\n".join(lines[1::2]) + "\n")
    (tmp_path / "names.txt").write_text("cow\nant\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PAUCAL_DATA", raising=False)
    return tmp_path


def test_pin_data__makes_every_location_absolute(there, monkeypatch):
    pinned = with_absolute_data_paths(TrainSettings(data="wild_train.txt", classes="names.txt", data_root="."))
    assert pinned == TrainSettings(
        data=str(there / "wild_train.txt"), classes=str(there / "names.txt"), data_root=str(there)
    )
    assert with_absolute_data_paths(TrainSettings(classes="imagenet100")).classes == "imagenet100"
    monkeypatch.setenv("PAUCAL_DATA", "sets")
    assert with_absolute_data_paths(TrainSettings(data="dtd")).data_root == str(there / "sets")


def test_pin_data__keeps_the_built_in_digits(there):
    (there / "digits").mkdir()
    assert with_absolute_data_paths(TrainSettings(data="digits")) == TrainSettings(data="digits")


def test_pin_data__a_folder_of_that_name_later_changes_nothing(there, monkeypatch):
    pinned = with_absolute_data_paths(TrainSettings(data="dtd", data_root="sets"))
    for name in ("a", "b"):
        picture(there / "later" / "dtd" / name / "1.png", 0)
    monkeypatch.chdir(there / "later")
    assert load_images(TrainSettings(data="dtd")).classes == ("a", "b")
    assert load_images(pinned).classes == ("banded", "woven")


def test_load_images__takes_the_chosen_classes(there):
    images = load_images(TrainSettings(data="wild_train.txt", classes="names.txt"))
    assert images.classes == ("ant", "cow")
    assert [images.declared_splits.count(part) for part in ("train", "test")] == [6, 4]


def test_train_and_eval__agree_on_the_images_from_elsewhere(there, monkeypatch, tmp_path):
    assert main(["train", "wild_train.txt", "--classes", "names.txt", *QUICK, "--output", "run"]) == 0
    settings = yaml.safe_load((there / "run/config.yaml").read_text())["settings"]
    assert (settings["data"], settings["classes"]) == (str(there / "wild_train.txt"), str(there / "names.txt"))
    before = json.loads((there / "run/evaluation/test/metrics.json").read_text())
    monkeypatch.chdir(there / "wild")
    assert main(["eval", str(there / "run")]) == 0
    after = json.loads((there / "run/evaluation/test/metrics.json").read_text())
    assert before["images"] == after["images"] == 4
    assert before["scores"]["loss"]["value"] == pytest.approx(after["scores"]["loss"]["value"], rel=1e-5)


def test_eval__takes_names_and_classes(there, capsys):
    assert main(["train", "dtd", "--data-root", "sets", *QUICK, "--output", "run"]) == 0
    assert main(["eval", "run", "dtd", "--data-root", "sets"]) == 0
    assert json.loads((there / "run/evaluation/dtd/metrics.json").read_text())["images"] == 2
    capsys.readouterr()
    assert main(["eval", "run", "wild_test.txt", "--classes", "names.txt"]) == 2
    assert "2 classes that the model does not know (ant, cow)" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("verb", [["train"], ["eval", "run"]])
def test_missing_set__is_one_sentence_and_exit_code_2(verb, there, capsys):
    if verb[0] == "eval":
        assert main(["train", "dtd", "--data-root", "sets", *QUICK, "--output", "run"]) == 0
        capsys.readouterr()
    assert main([*verb, "cifar10", "--data-root", "nowhere"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert f"the data set 'cifar10' is not in {there / 'nowhere'}: give --download, or put cifar-10-python" in lines[0]
