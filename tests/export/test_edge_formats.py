"""Files for edge runtimes: they answer as the model does, with the runtime alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import paucal
from cli.calls import call

ALONE = Path(__file__).with_name("runtime_alone.py")
TRAIN = ["--img-size", "16", "--epochs", "2", "-j", "0", "--model", "vit_mini", "--model-args", "depth=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edge") / "run"
    assert call("train", *TRAIN, "--output", folder) == 0
    return folder


def run_alone(path, given, tmp_path):
    np.save(tmp_path / "given.npy", given)
    done = subprocess.run(
        [sys.executable, str(ALONE), str(path), str(tmp_path / "given.npy")], capture_output=True, text=True, check=True
    )
    return np.asarray(json.loads(done.stdout))


@pytest.fixture(scope="module")
def picture():
    return Image.linear_gradient("L").convert("RGB").resize((40, 25))


@pytest.mark.parametrize(("name", "file"), [("onnx", "model.onnx"), ("openvino", "model.xml")])
def test_file__gives_probabilities_of_bytes_with_its_runtime_alone(run, picture, tmp_path, name, file):
    pytest.importorskip(name)
    paucal.export_model(run, output=str(tmp_path / "out"), format=[name], with_preprocessing=True, images=5)
    answer = run_alone(tmp_path / "out" / file, np.asarray(picture)[None], tmp_path)
    np.testing.assert_allclose(answer, paucal.load(run).probabilities([picture]).numpy(), atol=0.02)


def test_openvino__in_8_bits_says_what_it_costs(run, picture, tmp_path):
    pytest.importorskip("nncf")
    found = paucal.export_model(run, output=str(tmp_path / "out"), format=["openvino"], int8=True, images=60)
    whole, small = (found.comparisons[name] for name in ("model.xml", "model.int8.xml"))
    assert whole.largest < 0.005
    assert whole.agreement > 0.95
    assert 0 < small.largest < 0.5
    assert small.agreement > 0.8
    assert small.accuracy is not None
    assert small.size < 0.8 * whole.size
    model = paucal.load(run)
    answer = run_alone(tmp_path / "out" / "model.int8.xml", model.prepared([picture]).numpy(), tmp_path)
    assert answer.argmax() == model.probabilities([picture]).argmax()
