"""Test-time views: the mean over an image and its mirror image, where validation shows that it helps."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import paucal
from paucal.models.trained import load_trained
from paucal.tasks.classification.finishing import mirror_sentence
from paucal.types import UserError
from paucal.verbs.serve.picture_predictor import PicturePredictor


@pytest.fixture(scope="module")
def run(digit_run):
    return digit_run


def test_export__has_the_average_within_its_graph(run, tmp_path):
    found = paucal.export_model(run, format=["onnx"], mirror=True, images=20, output=tmp_path / "files")
    assert found.comparisons["model.onnx"].agreement == 1.0
    images = torch.randn(3, 1 if load_trained(run).card.backbone.in_chans == 1 else 3, 32, 32)
    height, width = load_trained(run).card.preprocessing.image_size
    images = torch.nn.functional.interpolate(images, (height, width))
    answers = onnxruntime.InferenceSession(found.folder / "model.onnx").run(None, {"images": images.numpy()})[0]
    module = load_trained(run).module.eval()
    with torch.no_grad():
        wanted = (module(images) + module(images.flip(-1))) / 2
    torch.testing.assert_close(torch.from_numpy(answers), wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(wanted, module(images), atol=1e-3)


def test_export__of_weights_alone_cannot_average(run, tmp_path):
    said = "--mirror adds the average over mirrored images to an exported graph, but --format safetensors only stores"
    with pytest.raises(UserError, match=said):
        paucal.export_model(run, format=["safetensors", "pt2"], mirror=True, output=tmp_path / "files")


def test_serve__averages_as_predict_does(run, tmp_path):
    picture = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(picture)
    model = load_trained(run)
    found = PicturePredictor(model, None, mirror=True).predict(picture.read_bytes(), "picture", explain=False)
    wanted = paucal.predict(run, str(picture), mirror=True)[0]
    assert found["classes"][0]["name"] == wanted.predicted
    assert found["classes"][0]["probability"] == pytest.approx(wanted.confidence, abs=1e-4)
    plain = PicturePredictor(model, None).predict(picture.read_bytes(), "picture", explain=False)
    assert json.dumps(plain) != json.dumps(found)


def test_eval__leaves_the_results_of_the_run_as_they_are(run):
    before = (run / "evaluation/test/metrics.json").read_bytes()
    found = paucal.evaluate(run, mirror=True, workers=0)
    assert found.classification[0].folder == run / "evaluation/test-mirror"
    assert (run / "evaluation/test-mirror/metrics.json").exists()
    assert (run / "evaluation/test/metrics.json").read_bytes() == before


def test_sentence__comes_where_the_likelihood_gains_more_than_a_standard_error():
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    clean = 3.0 * torch.nn.functional.one_hot(labels, 3)
    noise = [4.0 * torch.randn(90, 3, generator=draw) for _ in range(2)]
    plain, mirrored = clean + noise[0], clean + (noise[0] + noise[1]) / 2
    said = mirror_sentence(plain, mirrored, labels)
    right = [100 * float((logits.argmax(1) == labels).double().mean()) for logits in (mirrored, plain)]
    assert said.startswith(f"averaging over mirror images helps: {right[0]:.1f} % of the validation images are class")
    assert f" correctly instead of {right[1]:.1f} %; give --mirror to predict, eval, export or serve" in said
    assert said.endswith("which then take twice as long")
    assert mirror_sentence(mirrored, plain, labels) == ""
    assert mirror_sentence(plain, plain, labels) == ""
    assert mirror_sentence(plain[:1], mirrored[:1], labels[:1]) == ""
