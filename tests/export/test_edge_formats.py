"""Files for edge runtimes: they answer as the model does, with the runtime alone."""

import base64
import gzip
import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import paucal
from cli.calls import call, failure
from export.alone import run_alone
from paucal.backbones.stage_classifier import add_stage_classifier, stage_classifier
from paucal.export import coreml_model
from paucal.export.browser_page import MODEL_ELEMENT
from paucal.export.formats import Format
from paucal.export.program import Graph

pytestmark = pytest.mark.usefixtures("kept_graphs")
TRAIN = ["--img-size", "16", "--epochs", "2", "-b", "64", "-j", "0", "--model", "vit_mini", "--model-args", "depth=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edge") / "run"
    assert call("train", *TRAIN, "--output", folder) == 0
    return folder


def model_inside(page):
    return gzip.decompress(base64.b64decode(MODEL_ELEMENT.search(page)[1]))


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


def test_litert__answers_with_its_runtime_alone(run, picture, tmp_path):
    pytest.importorskip("litert_torch", reason="the extra litert wants an earlier torch than the others")
    found = paucal.export_model(run, output=str(tmp_path / "out"), format=["litert"], int8=True, images=60)
    whole, small = (found.comparisons[name] for name in ("model.tflite", "model.int8.tflite"))
    assert whole.largest < 1e-4
    assert small.agreement > 0.8
    assert small.size < 0.6 * whole.size
    model = paucal.load(run)
    answer = run_alone(tmp_path / "out" / "model.tflite", model.prepared([picture]).numpy(), tmp_path)
    logits = model.module(model.prepared([picture])).detach().numpy()
    np.testing.assert_allclose(answer, logits, atol=1e-4)
    assert json.loads((tmp_path / "out" / "model.json").read_text())["classes"] == list(model.classes)


def test_coreml__has_the_shapes_of_the_graph(run, tmp_path):
    coremltools = pytest.importorskip("coremltools")
    found = paucal.export_model(run, output=str(tmp_path / "out"), format=["coreml"], images=2)
    description = coremltools.utils.load_spec(str(tmp_path / "out/model.mlpackage")).description
    shapes = [list(each[0].type.multiArrayType.shape) for each in (description.input, description.output)]
    assert shapes == [[1, 3, 16, 16], [1, 10]]
    assert json.loads(description.metadata.userDefined["paucal"])["classes"] == [str(n) for n in range(10)]
    if sys.platform != "darwin":
        assert found.comparisons == {}
        assert any("was not run" in line for line in found.said)


class Stages(nn.Module):
    """Three convolutions that are named as timm names the stages of its networks, and a classifier."""

    feature_info = [{"module": f"stages.{number}"} for number in range(3)]  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(*(nn.Conv2d(width, 2 * width, 3, 2, 1) for width in (3, 6, 12)))
        self.fc = nn.Linear(24, 3)

    def get_classifier(self):
        return self.fc

    def forward(self, images):
        return self.fc(self.stages(images).mean((2, 3)))


def test_coreml__takes_a_head_that_reads_several_stages(run, tmp_path):
    pytest.importorskip("coremltools")
    torch.manual_seed(0)
    network = add_stage_classifier(Stages(), (64, 64)).eval()
    assert stage_classifier(network).pool.width == 2 * (6 + 12 + 24)
    images = torch.randn(1, 3, 64, 64)
    program = torch.export.export(network, (images,), strict=False).run_decompositions(coreml_model.DECOMPOSITIONS)
    assert "var_mean" not in str(program.graph)
    torch.testing.assert_close(program.module()(images), network(images))
    graph = Graph(network, images, {0: "batch"}, "images", "logits")
    coreml_model.write(graph, paucal.load(run).card, tmp_path / "model.mlpackage")  # checks the shapes
    assert (tmp_path / "model.mlpackage/Manifest.json").is_file()


FAKE = {
    "ort.wasm.min.js": "var ort = '</script>';",
    "ort-wasm-simd-threaded.mjs": "m",
    "ort-wasm-simd-threaded.wasm": "w",
}


def test_html__has_the_runtime_and_the_model_inside(run, picture, tmp_path):
    pytest.importorskip("onnxscript")
    (tmp_path / "package/dist").mkdir(parents=True)
    for name, content in FAKE.items():
        (tmp_path / "package/dist" / name).write_text(content)
    found = paucal.export_model(
        run, output=str(tmp_path / "out"), format=["html"], onnxruntime_web=str(tmp_path / "package"), images=5
    )
    assert found.comparisons["model.html"].agreement == 1.0
    page = (tmp_path / "out/model.html").read_text()
    assert "var ort = '<\\/script>';" in page
    assert "default-src 'none'" in page
    assert 'const classes = ["0", "1", "2"' in page
    assert "Permission is hereby granted" in page
    (tmp_path / "model.onnx").write_bytes(model_inside(page))
    answer = run_alone(tmp_path / "model.onnx", np.asarray(picture)[None], tmp_path)
    np.testing.assert_allclose(answer, paucal.load(run).probabilities([picture]).numpy(), atol=0.02)


@pytest.mark.slow
@pytest.mark.skipif("PAUCAL_ONNXRUNTIME_WEB" not in os.environ, reason="needs the npm package onnxruntime-web unpacked")
def test_html__classifies_in_a_browser_without_a_network(run, picture, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    paucal.export_model(
        run,
        output=str(tmp_path / "out"),
        format=["html"],
        onnxruntime_web=os.environ["PAUCAL_ONNXRUNTIME_WEB"],
        images=5,
    )
    picture.save(tmp_path / "picture.png")
    with sync_api.sync_playwright() as browsers:
        path = shutil.which("chromium")
        browser = browsers.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(offline=True).new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "out/model.html").as_uri())
        page.locator("#file:not([disabled])").wait_for(state="attached", timeout=120_000)
        page.set_input_files("#file", tmp_path / "picture.png")
        page.locator("#answer li").first.wait_for(timeout=120_000)
        lines = page.locator("#answer li").all_inner_texts()
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []
    share, place = paucal.load(run).probabilities([picture])[0].sort(descending=True)
    for line, value, number in zip(lines, share.tolist(), place.tolist(), strict=False):
        shown, name = line.split("%")
        assert (float(shown), name.strip()) == (pytest.approx(100 * value, abs=0.2), str(number))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--format", "html"], "--onnxruntime-web FOLDER"),
        (["--format", "html", "--onnxruntime-web", "."], "does not contain ort.wasm.min.js"),
        (["--format", "coreml", "--with-preprocessing"], "fixed sizes"),
    ],
)
def test_edge_formats__refuse_in_one_sentence(run, tmp_path, capsys, monkeypatch, flags, words):
    monkeypatch.setattr(Format, "installed", True)
    monkeypatch.chdir(tmp_path)
    assert words in failure(capsys, "export", run, *flags, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()
