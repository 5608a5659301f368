"""A model that is loaded back: fed as in training, and built from nothing but its own checked files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.backbones import BackboneSpec
from paucal.data.decode import decode_rgb
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import load_trained, save_trained
from paucal.runs import RunFolder
from paucal.types import UserError

SPEC = BackboneSpec("vit_mini", 2, image_size=(16, 16), arguments={"depth": 1})
CARD = ModelCard(SPEC, ("cat", "dog"), Preprocessing((16, 16), 1.0, "bicubic", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)))


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path)
    run.write_yaml("config.yaml", {"settings": {}})
    torch.manual_seed(0)
    save_trained(run, SPEC.build().model, CARD)
    return run


def noise(size=(40, 24), seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8))


def test_probabilities__turn_a_photo_upright_as_the_commands_do(run, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    noise().save(tmp_path / "photo.jpg", exif=exif)
    model = load_trained(run)
    upright = decode_rgb(tmp_path / "photo.jpg", "photo.jpg")
    with Image.open(tmp_path / "photo.jpg") as photo:
        assert torch.equal(model.probabilities([photo]), model.probabilities([upright]))
    plain = Image.fromarray(np.asarray(upright))
    assert torch.equal(model.probabilities([upright]), model.probabilities([plain]))  # and not twice


def test_probabilities__scale_16_bit_pixels(run, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65535, (20, 20)).astype(np.uint16)
    Image.fromarray(pixels).save(tmp_path / "xray.png")
    model = load_trained(run)
    expected = model.probabilities([decode_rgb(tmp_path / "xray.png", "xray.png")])
    assert torch.equal(model.probabilities([Image.open(tmp_path / "xray.png")]), expected)
    assert not torch.allclose(expected, model.probabilities([Image.new("RGB", (20, 20), "white")]), atol=1e-3)


def test_probabilities__of_nothing_are_refused(run):
    with pytest.raises(ValueError, match="no images to classify"):
        load_trained(run).probabilities([])


def test_load__fetches_no_published_weights(run):
    # vit_mini has none, so asking for them would fail.
    save_trained(run, SPEC.build().model, replace(CARD, backbone=replace(SPEC, pretrained=True)))
    assert load_trained(run).probabilities([noise()]).shape == (1, 2)


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "nonsense", "meta"])
def test_load__names_a_device_that_is_not_there(run, device):
    with pytest.raises(UserError, match=f"the device '{device}' cannot be used on this machine"):
        load_trained(run, device)


@pytest.mark.parametrize(
    ("entry", "value", "says"),
    [
        ("classes", ["cat"], "must name the 2 classes"),
        ("classes", "ab", "must name the 2 classes"),
        ("classes", ["cat", 3], "must name the 2 classes"),
        ("image_size", ["16", 16], "image_size"),
        ("image_size", [16, 10**9], r"image_size \(16, 1000000000\), expected height and width"),
        ("crop_ratio", 1e-9, "crop_ratio 1e-09, expected a number from 0.1 to 1"),
        ("crop_ratio", "all", "crop_ratio 'all', expected a number from 0.1 to 1"),
        ("interpolation", "evil", "interpolation 'evil', expected one of bicubic"),
        ("mean", [0.5], r"mean \(0.5,\), expected 3 numbers, as for std"),
        ("mean", [0.5, 0.5, float("nan")], "mean"),
        ("std", [0.2, 0.2, 0], "std"),
        ("std", 3, "not a model card"),
        ("backbone", [1], "unknown fields"),
    ],
)
def test_load__checks_every_entry_of_the_card(run, entry, value, says):
    card = json.loads(run.card.read_text())
    owner = card if entry in card else card["preprocessing"]
    owner[entry] = value
    run.card.write_text(json.dumps(card))
    with pytest.raises(UserError, match=says):
        load_trained(run)


def test_load__refuses_to_prepare_other_channels_than_the_model_reads(run):
    card = json.loads(run.card.read_text())
    card["preprocessing"] |= {"mean": [0.5] * 4, "std": [0.2] * 4}
    run.card.write_text(json.dumps(card))
    with pytest.raises(UserError, match="has preprocessing for 4 channels, but a model for 3: restore the file"):
        load_trained(run)


def test_load__says_what_to_do_with_a_run_that_was_stopped_early(run):
    run.card.unlink()
    run.last.parent.mkdir(exist_ok=True)
    run.last.write_bytes(b"")
    with pytest.raises(UserError, match="before it saved a model: resume the run with --resume first"):
        load_trained(run)


def test_probabilities__are_those_of_the_logits_over_the_temperature(run):
    plain = load_trained(run)
    save_trained(run, plain.module, CARD.at_temperature(4.0))
    warm = load_trained(run)
    assert warm.card.temperature == 4.0
    expected = (plain.probabilities([noise()]).log() / 4).softmax(1)
    assert torch.allclose(warm.probabilities([noise()]), expected, atol=1e-6)
    assert not torch.allclose(warm.probabilities([noise()]), plain.probabilities([noise()]), atol=1e-3)


def test_card__without_a_temperature_has_one_of_1(run):
    stored = json.loads(run.card.read_text())
    del stored["temperature"]
    run.card.write_text(json.dumps(stored))
    assert load_trained(run).card.temperature == 1.0


@pytest.mark.parametrize("temperature", [0, -1.0, 1e9, "hot", None, True, float("nan")])
def test_card__refuses_a_temperature_out_of_range(run, temperature):
    stored = json.loads(run.card.read_text())
    run.card.write_text(json.dumps({**stored, "temperature": temperature}))
    with pytest.raises(UserError, match="temperature"):
        load_trained(run)


def test_mirrored__answers_alike_for_an_image_and_its_mirror_image(run):
    plain, both = load_trained(run), load_trained(run).mirrored()
    picture = noise((16, 16))
    other = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert torch.allclose(both.probabilities([picture]), both.probabilities([other]), atol=1e-6)
    logits = [plain.probabilities([one]).log() for one in (picture, other)]
    assert torch.allclose(both.probabilities([picture]), (sum(logits) / 2).softmax(1), atol=1e-6)


def test_card__of_several_labels_has_a_sigmoid_for_each_class(run):
    several = CARD.with_thresholds([0.3, 0.6])
    save_trained(run, SPEC.build().model, several)
    model = load_trained(run)
    assert model.card == several
    view = model.card.preprocessing.transform()(noise())[0]
    torch.testing.assert_close(model.probabilities([noise()])[0], model.module(view[None])[0].detach().sigmoid())
    stored = json.loads(run.card.read_text())
    assert (stored["format"], stored["thresholds"]) == (2, [0.3, 0.6])
    assert CARD.to_dict()["format"] == 1
    assert "thresholds" not in CARD.to_dict()


@pytest.mark.parametrize("thresholds", [[0.5], [0.5, 0.0], [0.5, 1.0], [0.5, "x"], [0.5, None]])
def test_card__with_thresholds_that_are_none_is_refused(thresholds):
    with pytest.raises(UserError, match="must have one threshold between 0 and 1"):
        ModelCard.from_dict({**CARD.to_dict(), "format": 2, "thresholds": thresholds})
