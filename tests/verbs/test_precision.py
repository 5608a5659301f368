"""--precision of the verbs that classify: as given, measured, or unchanged where a processor lacks bfloat16."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import paucal
from paucal.cli.main import main
from paucal.models import precision
from paucal.models.precision import PrecisionChoice
from paucal.models.trained import load_trained
from paucal.runner import inference as runner_precision
from paucal.types import UserError
from paucal.verbs.check import labels as check_labels
from paucal.verbs.eval import classification as eval_classification
from paucal.verbs.predict.journal import stored_precision
from paucal.verbs.serve.picture_predictor import PicturePredictor

FASTER = PrecisionChoice(
    torch.bfloat16, "bfloat16: 2.0 times as fast as float32 here, with the same predictions", 2.0, True
)


@pytest.fixture(scope="module")
def run(digit_run):
    return digit_run


@pytest.fixture
def pictures(tmp_path):
    draw = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(tmp_path / f"{number:02}.png")
    return tmp_path


@pytest.fixture
def measured(monkeypatch):
    """Let measurements prefer bfloat16; return the numbers of images that were asked for."""
    asked = []

    def choose(module, images, key, count, has_logits=True):
        asked.append((len(images), count))
        return FASTER

    for module in (runner_precision, check_labels):
        monkeypatch.setattr(module, "choose_precision", choose)
    for module in (precision, runner_precision, check_labels, eval_classification):
        monkeypatch.setattr(module, "bfloat16_flags", lambda: ("avx512_bf16",))
    return asked


def shares(rows):
    return torch.stack([row.shares for row in rows])


def test_predict__computes_as_given_and_as_measured(run, pictures, measured):
    exact = shares(paucal.predict(run, str(pictures), precision="32-true"))
    images = [Image.open(path).convert("RGB") for path in sorted(pictures.glob("*.png"))]
    assert torch.equal(exact, load_trained(run).probabilities(images))
    assert measured == []
    near = shares(paucal.predict(run, str(pictures)))
    assert measured == [(8, 12)]
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, atol=0.02, rtol=0.1)
    assert torch.equal(near, shares(paucal.predict(run, str(pictures), precision="bf16-mixed")))
    mirrored = paucal.predict(run, str(pictures), precision="bf16-mixed", mirror=True, features=True)
    assert mirrored[0].features.shape == paucal.predict(run, images[:1], features=True)[0].features.shape


def test_predict__of_few_pictures_or_on_a_processor_without_bfloat16_stays_as_it_was(
    run, pictures, measured, monkeypatch
):
    exact = shares(paucal.predict(run, str(pictures), precision="32-true"))
    images = [Image.open(path).convert("RGB") for path in sorted(pictures.glob("*.png"))]
    assert torch.equal(
        shares(paucal.predict(run, images[:8], batch_size=8)), load_trained(run).probabilities(images[:8])
    )
    monkeypatch.setattr(runner_precision, "bfloat16_flags", lambda: ())
    assert torch.equal(shares(paucal.predict(run, str(pictures))), exact)
    assert measured == []


def test_eval__computes_the_images_of_the_run_as_training_does_and_others_as_measured(run, measured, tmp_path, capsys):
    paucal.evaluate(run, output=tmp_path / "own")
    paucal.evaluate(run, "digits", output=tmp_path / "named")
    paucal.evaluate(run, output=tmp_path / "rounded", precision="bf16-mixed")
    assert measured == []
    stored, again, named, rounded = (
        json.loads((folder / "metrics.json").read_text())["scores"]["loss"]["value"]
        for folder in (run / "evaluation" / "test", tmp_path / "own", tmp_path / "named", tmp_path / "rounded")
    )
    assert (again, named) == pytest.approx((stored, stored), abs=1e-6)
    assert abs(rounded - stored) > 1e-5
    draw = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / "others" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    command = ["eval", str(run), str(tmp_path / "others"), "--output", str(tmp_path / "report")]
    assert main(command) == 0
    assert measured == [(8, 12)]
    said = capsys.readouterr()
    assert "precision: bfloat16: 2.0 times as fast as float32 here" in said.out + said.err
    main([*command, "--precision", "32-true"])
    assert len(measured) == 1


def test_check__reads_features_in_the_measured_precision(measured, tmp_path, run, monkeypatch):
    real, keys = check_labels.choose_precision, []
    monkeypatch.setattr(check_labels, "choose_precision", lambda *a, **k: (keys.append(a[2]), real(*a, **k))[1])
    draw = np.random.default_rng(0)
    for number in range(60):
        folder = tmp_path / "set" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    flags = ["--labels", "--model", str(run), "--format", "json"]
    assert main(["check", str(tmp_path / "set"), *flags]) in (0, 1)
    assert measured[0] == (8, 60)
    assert set(keys) == {load_trained(run).card.backbone.name}  # not the path of the run
    asked = len(measured)
    main(["check", str(tmp_path / "set"), *flags, "--precision", "32-true"])
    assert len(measured) == asked


def test_serve__lets_the_first_picture_decide(run, pictures, measured):
    content = (pictures / "00.png").read_bytes()
    fast, exact = PicturePredictor(load_trained(run), None, None), PicturePredictor(load_trained(run), None)
    answers = [fast.predict(content, "0.png", explain=False) for _ in range(2)]
    assert measured == [(2, None)]
    assert answers[0] == answers[1]
    assert exact.predict(content, "0.png", explain=False)["classes"][0]["name"] == answers[0]["classes"][0]["name"]
    assert json.dumps(answers[0])


def test_precision__is_of_classifiers(run, pictures):
    with pytest.raises(UserError, match="--precision is only for classifiers"):
        paucal.evaluate(run, protocol=["knn"], precision="bf16-mixed")
    assert Path(run).exists()


def test_stored_precision__waits_for_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "0000.arrow")
    with pytest.raises(UserError, match="is not a regular file"):
        stored_precision(tmp_path)
