"""Images of five channels, from the check to the prediction; what tells the classes apart lies in the fifth alone."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import paucal
from cli.calls import make_photos
from paucal.cli.main import main as command
from paucal.models.trained import load_trained
from paucal.runner.images import stored_decode_options
from paucal.runs import RunFolder
from paucal.types import UserError
from tasks.classification.auto_tune.carried import MODEL, install

SMALL = {"model": "vit_mini", "model_args": ["depth=1"], "img_size": 32, "batch_size": 8, "workers": 0, "device": "cpu"}
TINY = {**SMALL, "model_args": ["depth=1", "embed_dim=32", "num_heads=2"], "img_size": 16}


def write_set(folder, channels=5, each=20, dtype=np.uint16, side=32):
    """Write two classes that differ in the brightness of their last channel; 12-bit values, the last one's 1 to 40."""
    draw = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 4096, (side, side, channels)).astype(dtype)
            pixels[..., -1] = draw.integers(1, 11, (side, side)) + 30 * label
            np.save(folder / name / f"{number:02d}.npy", pixels)
    return folder


@pytest.fixture
def five(tmp_path):
    return write_set(tmp_path / "five", side=16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learned to tell the classes apart, next to its images in `five`."""
    root = tmp_path_factory.mktemp("trained")
    five, begin = write_set(root / "five"), {"init": "none", "epochs": 6, "method": "supervised"}
    return paucal.train(five, output=str(root / "run"), **begin, **SMALL)


def test_train__learns_from_the_fifth_channel_and_predicts_with_its_range(trained, tmp_path, capsys):
    result, five = trained, trained.folder.parent / "five"
    assert result.report.scores["top1"].value == 1.0
    stored = json.loads((result.folder / "model.json").read_text())
    assert (stored["backbone"]["in_chans"], len(stored["preprocessing"]["mean"])) == (5, 5)
    ranges = stored["preprocessing"]["channel_ranges"]
    assert ranges[4] == [1, 40]
    assert ranges[0][1] > 4000
    assert "images are read with 5 channels" in (result.folder / "train.log").read_text()
    assert (result.folder / "plots" / "train_batch.png").is_file()

    model = load_trained(result.folder)
    arrays = [np.load(five / name / "03.npy") for name in ("dark", "light")]
    given = model.probabilities(arrays)
    assert given.argmax(1).tolist() == [0, 1]
    capsys.readouterr()
    assert command(["predict", str(result.folder), str(five / "dark" / "03.npy"), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told[0]["confidence"] == pytest.approx(float(given[0].max()), abs=1e-4)
    written = {name: str(tmp_path / name) for name in ("features.parquet", "sheet.png", "answers.csv")}
    words = ["--features", written["features.parquet"], "--sheet", written["sheet.png"]]
    assert command(["predict", str(result.folder), str(five), *words, "--output", written["answers.csv"]]) == 0
    features = pq.read_table(written["features.parquet"]).to_pydict()
    views = model.prepared(arrays)
    with torch.no_grad():
        naive = model.module.forward_head(model.module.forward_features(views), pre_logits=True)  # type: ignore[operator]
    for name, vector in zip(("dark", "light"), naive, strict=True):
        place = features["path"].index(str(five / name / "03.npy"))
        torch.testing.assert_close(torch.tensor(features["features"][place]), vector, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="the image has 2 channels, expected 5"):
        model.probabilities([arrays[0][..., :2]])


def test_teacher_and_guide__of_five_channels_see_all_of_them(five, tmp_path):
    guide = {"model": "resnet18_cifar", "model_args": ["channels=[8,8,8,8]"]}
    begun = {"output": str(tmp_path / "cnn"), "init": "none", "epochs": 1, "method": "supervised"}
    paucal.train(five, **{**TINY, **begun, **guide})
    taught = {"add": ["distillation", "locality"], "teacher": str(tmp_path / "cnn"), "guide": str(tmp_path / "cnn")}
    shape = {"model_args": ["depth=3", *TINY["model_args"][1:]], "output": str(tmp_path / "taught")}
    result = paucal.train(five, **{**TINY, **begun, **taught, **shape})
    assert {"train_distillation", "train_locality"} <= set((result.folder / "metrics.csv").read_text().split(","))


def test_run__is_read_again_with_the_channels_and_ranges_it_was_begun_with(trained, tmp_path):
    five = shutil.copytree(trained.folder.parent / "five", tmp_path / "five")
    begun = RunFolder(shutil.copytree(trained.folder, tmp_path / "run"))
    begun.config.write_text(begun.config.read_text().replace(str(trained.folder.parent), str(tmp_path)))
    stored = stored_decode_options(begun)
    assert stored is not None
    assert (stored.channels, stored.channel_ranges) == (5, trained.model.card.preprocessing.channel_ranges)
    for path in five.glob("*/*.npy"):  # another set would have another range, which is not measured again
        np.save(path, np.load(path) // 4)
    again = paucal.evaluate(begun.path)
    darker = load_trained(begun.path).probabilities([np.load(five / "light" / "03.npy")])
    assert float(darker[0, 0]) > 0.5, "a quarter as light is dark, by the range of the training images"
    assert again.classification[0].report.scores["top1"].value < trained.report.scores["top1"].value


def test_trained_weights__are_adapted_to_the_channels(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    five = write_set(tmp_path / "five")  # smaller images take no such weights
    result = paucal.train(five, output=str(tmp_path / "run"), epochs=0, img_size=32, workers=0, device="cpu")
    said = (result.folder / "train.log").read_text()
    assert "input channels from 3 to 5" in said
    model = load_trained(result.folder)
    assert model.card.backbone.name.startswith(MODEL)
    first = next(module for module in model.module.modules() if isinstance(module, torch.nn.Conv2d))
    assert first.in_channels == 5
    assert torch.equal(first.weight[:, 0], first.weight[:, 3])  # timm repeats the three


def test_pretrain_and_check__read_channels_too(five, tmp_path):
    found = paucal.check(five, output=str(tmp_path / "check"))
    assert not found.misleads
    assert found.facts["channels"] == {"5 channels, uint16": 40}
    run = paucal.pretrain(five, output=str(tmp_path / "pre"), method="lejepa", epochs=1, **TINY)
    tuned = paucal.train(five, output=str(tmp_path / "run"), init=str(run.folder), epochs=1, **TINY)
    assert load_trained(tuned.folder).card.preprocessing.channels == 5


def test_mixed_channels__are_named_before_anything_is_read(five, tmp_path):
    np.save(five / "light" / "20.npy", np.zeros((32, 32, 2), dtype=np.uint16))
    with pytest.raises(UserError, match=r"dark/00.npy has 5, light/20.npy has 2; give --channels"):
        paucal.train(five, output=str(tmp_path / "run"), epochs=1, init="none", **TINY)
    assert not (tmp_path / "run").exists()
    found = paucal.check(five)
    assert found.misleads
    assert found.findings[0].name == "channels"
    skipped = {"channels": 5, "on_bad_image": "skip", "epochs": 1, "init": "none"}
    run = paucal.train(five, output=str(tmp_path / "run"), **skipped, **TINY)
    assert "light/20.npy" not in (run.folder / "split.csv").read_text()


def test_channels__of_photographs_are_three_unless_one_is_asked_for(tmp_path):
    photos = make_photos(tmp_path / "photos")
    run = paucal.train(photos, output=str(tmp_path / "grey"), channels=1, epochs=1, init="none", **TINY)
    card = load_trained(run.folder).card
    assert (card.preprocessing.channels, card.backbone.in_chans) == (1, 1)
