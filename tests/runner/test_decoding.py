"""Runs over images that have to be reduced, left out or brought to 8 bits."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import paucal
from paucal.data.decoded.on_disk import MappedStore
from paucal.data.sources.opening import open_images
from paucal.methods.training_settings import TrainSettings
from paucal.models.trained import load_trained
from paucal.runner.images import decode_options_for_size, load_images
from paucal.types import UserError

SMALL = {
    **{"model": "vit_mini", "img_size": [16], "epochs": 1, "batch_size": 4, "init": "none", "method": "supervised"},
    **{"model_args": ["depth=1"], "device": "cpu", "workers": 0},
}


@pytest.fixture
def deep(tmp_path):
    """A set of 12-bit grey images in 16-bit files: dark ones and bright ones, which 8 upper bits could not tell."""
    random = np.random.default_rng(0)
    for number in range(20):
        file = tmp_path / "deep" / ("dark", "bright")[number % 2] / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        level = (300, 3500)[number % 2]
        Image.fromarray(random.integers(level - 250, level + 250, (40, 40), dtype=np.uint16)).save(file)
    return tmp_path / "deep"


def test_train__stores_the_range_of_deep_images_and_uses_it_again(deep, tmp_path):
    run = paucal.train(deep, output=tmp_path / "run", **SMALL).run
    low, high = json.loads((run / "model.json").read_text())["preprocessing"]["value_range"]
    assert 50 <= low <= 80
    assert 3720 <= high <= 3750
    model = load_trained(run)
    assert model.card.preprocessing.value_range == (low, high)
    # A single bright image says nothing of the range, and is read as the training images were.
    file = deep / "bright" / "01.png"
    given = paucal.predict(run, file)[0].shares
    assert torch.equal(given, model.probabilities([Image.open(file)])[0])
    pixels = np.asarray(open_images(deep, labelled=False).store.read(0))
    assert pixels.max() <= 15  # without the range nearly black
    assert np.asarray(load_images(TrainSettings(data=str(deep))).store.read(0)).min() > 190


def test_train__chooses_anew_what_follows_from_images_that_were_left_out(deep, tmp_path):
    (deep / "dark" / "00.png").write_bytes(b"")
    settings = {**SMALL, "img_size": None, "recipe": None}
    with pytest.raises(UserError, match=r"1 of 20 images cannot be read \(dark/00\.png\)"):
        paucal.train(deep, output=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
    result = paucal.train(deep, output=tmp_path / "run", on_bad_image="skip", **settings)
    lines = (result.run / "split.csv").read_text().splitlines()
    assert not any("dark/00.png" in line for line in lines)
    assert sum(".png" in line for line in lines) == 19
    found = json.loads((result.run / "check.json").read_text())["findings"]  # of the images that are left
    assert any("fewer than 10 images" in one["text"] for one in found)


def test_load_images__keeps_large_images_at_about_twice_the_side_of_the_network(tmp_path):
    for number in range(4):
        file = tmp_path / "large" / "ab"[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (900, 600), (number * 50, 0, 0)).save(file)
    settings = TrainSettings(data=str(tmp_path / "large"))
    images = load_images(settings, decode_options=decode_options_for_size([32]))
    assert isinstance(images.store, MappedStore)
    assert images.store.read(0).size == (96, 64)
    assert images.sample_sizes().tolist() == [[600, 900]] * 4
    assert load_images(settings, decode_options=decode_options_for_size([224])).store.read(0).size == (
        900,
        600,
    )  # hardly larger than 512


def test_predict__sees_large_photos_as_training_did(tmp_path):
    random = np.random.default_rng(0)
    for number in range(12):
        file = tmp_path / "large" / "ab"[number % 2] / f"{number:02d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 255, (6, 9, 3), dtype=np.uint8))
        coarse.resize((450, 300), Image.Resampling.BICUBIC).save(file, quality=95)
    run = paucal.train(tmp_path / "large", output=tmp_path / "run", resize="letterbox", **SMALL).run
    stored = json.loads((run / "model.json").read_text())["preprocessing"]
    assert (stored["resize"], stored["crop_ratio"]) == ("letterbox", 1.0)
    model = load_trained(run)
    images = load_images(
        TrainSettings(data=str(tmp_path / "large")), decode_options=model.card.preprocessing.decode_options
    )
    assert images.store.read(0).size == (96, 64)
    expected = model.probabilities([images.store.read(i) for i in range(12)])
    rows = paucal.predict(run, tmp_path / "large")
    assert torch.equal(torch.stack([row.shares for row in rows]), expected)
