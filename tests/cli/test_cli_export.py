"""`paucal export` from the command line."""

import contextlib
import io
import json
import shutil
from dataclasses import replace

import pytest
import timm
import torch
from PIL import Image

import paucal
from cli.calls import failure
from paucal.cli.main import main
from paucal.export import formats
from paucal.export.formats import GRAPHS
from paucal.export.onnx_model import OnnxNetwork
from paucal.export.program import unpack_program
from paucal.types import UserError

pytestmark = pytest.mark.usefixtures("kept_graphs")


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """A copy of a finished run: the report of an exported one names the files."""
    return shutil.copytree(trained / "run", tmp_path_factory.mktemp("export") / "run")


def export(run, output, *more):
    return main(["export", str(run), "--output", str(output), "--images", "20", *more])


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The folder of an export in the usual formats, and what was printed."""
    output, said = tmp_path_factory.mktemp("exported") / "out", io.StringIO()
    with contextlib.redirect_stdout(said):
        assert export(run, output) == 0
    return output, said.getvalue()


def test_export__writes_files_that_answer_as_the_model_does(run, exported):
    output, said = exported
    names = {path.name for path in output.iterdir()}
    assert names == {
        *("model.pt2", "model.onnx", "model.safetensors"),
        *("model.json", "config.json", "README.md", "export.json"),
    }
    found = json.loads((output / "export.json").read_text())["comparisons"]
    assert set(found) == {"model.pt2", "model.onnx"}
    assert all(one["images"] == 6 and one["agreement"] == 1.0 and one["largest"] < 1e-4 for one in found.values())
    assert "on 6 test images the same class for 100.0 %" in said
    page = (run / "report.html").read_text()
    assert "Exported files" in page
    assert all(f'<td class="name">{name}</td>' in page for name in found)

    original = paucal.load(run)
    picture = Image.new("RGB", (20, 24), (200, 30, 90))
    wanted = original.probabilities([picture])
    for source in (output, output / "model.onnx"):
        model = paucal.load(source)
        assert model.classes == original.classes
        torch.testing.assert_close(model.probabilities([picture]), wanted, rtol=1e-3, atol=1e-4)
    network = timm.create_model(f"local-dir:{output}", pretrained=True).eval()
    batch = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network(batch), original.module(batch))


def test_predict__takes_an_onnx_model(run, exported, tmp_path, capsys):
    Image.new("RGB", (30, 30), (0, 100, 200)).save(tmp_path / "photo.png")
    said = []
    for source in (run, exported[0] / "model.onnx"):
        capsys.readouterr()
        assert main(["predict", str(source), str(tmp_path / "photo.png")]) == 0
        said.append(capsys.readouterr().out.splitlines()[1].split(",")[:2])
    assert said[0] == said[1]
    words = failure(capsys, "predict", source, tmp_path / "photo.png", "--features", tmp_path / "features.parquet")
    assert "features cannot be read" in words


def test_export__with_preprocessing_takes_bytes_and_gives_probabilities(run, tmp_path):
    found = paucal.export_model(run, output=str(tmp_path / "out"), format=["onnx"], with_preprocessing=True, images=20)
    assert found.comparisons["model.onnx"].largest < 0.05
    network = OnnxNetwork((tmp_path / "out" / "model.onnx").read_bytes())
    assert [network.input.name, network.output.name] == ["pixels", "probabilities"]
    picture = Image.linear_gradient("L").convert("RGB").resize((40, 25))
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(1, 25, 40, 3)
    torch.testing.assert_close(network(pixels), paucal.load(run).probabilities([picture]), rtol=0.01, atol=0.02)


def test_export__in_8_bits_says_what_it_costs(run, tmp_path, caplog):
    found = paucal.export_model(run, output=str(tmp_path / "out"), format=["onnx"], int8=True, images=40)
    small, whole = (tmp_path / "out" / name for name in ("model.int8.onnx", "model.onnx"))
    assert small.stat().st_size < 0.8 * whole.stat().st_size
    comparison = found.comparisons["model.int8.onnx"]
    assert comparison.accuracy is not None
    assert 0 < comparison.largest < 0.5
    assert comparison.agreement > 0.8
    assert [line for line in caplog.messages if "out-of-range" in line] == []  # onnxruntime on each normalisation


def test_export__in_8_bits_needs_the_images_of_a_run(run, tmp_path, capsys):
    (tmp_path / "bare").mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(run / name, tmp_path / "bare")
    assert export(tmp_path / "bare", tmp_path / "out", "--format", "onnx", "--int8") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "error: --int8 needs the training images of a run" in said
    assert "only contains a model: give the run that trained" in said


def test_export__keeps_what_agrees_and_nothing_of_what_does_not(run, tmp_path, capsys, monkeypatch):
    def run_shuffled(path):
        network = unpack_program(path.read_bytes())
        return lambda images: network(images).flip(1)

    monkeypatch.setitem(GRAPHS, "pt2", replace(GRAPHS["pt2"], load=run_shuffled))
    assert export(run, tmp_path / "out", "--format", "pt2", "onnx") == 2
    assert "model.pt2 differs from the model" in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.onnx", "export.json"}


def test_export__names_the_extra_of_a_format(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    assert export(run, tmp_path / "out", "--format", "openvino") == 2
    assert "pip install 'paucal[openvino]'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--int8", "--format", "pt2"], "give --format onnx"),
        (["--int8", "--with-preprocessing"], "--with-preprocessing cannot be combined"),
        (["--format", "tflite"], "expected"),
        (["--images", "0"], "--images"),
        (["--data", "no/such/folder"], "no/such/folder"),
    ],
)
def test_export__refuses_in_one_sentence(run, tmp_path, capsys, flags, words):
    assert export(run, tmp_path / "out", *flags) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_export__writes_over_nothing(run, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert export(run, tmp_path) == 2
    assert "is not empty: give another folder" in capsys.readouterr().err


def test_load__refuses_a_pt2_and_an_onnx_of_another_origin(run, tmp_path):
    (tmp_path / "a.pt2").write_bytes(b"x")
    with pytest.raises(UserError, match="can execute any code"):
        paucal.load(tmp_path / "a.pt2")
    (tmp_path / "b.onnx").write_bytes(b"x")
    with pytest.raises(UserError, match="cannot read this ONNX model"):
        paucal.load(tmp_path / "b.onnx")
    with pytest.raises(UserError, match="no ONNX model"):
        paucal.load(tmp_path / "c.onnx")


def test_load__refuses_an_onnx_whose_card_is_of_another_model(exported, tmp_path):
    import onnx

    path = tmp_path / "model.onnx"
    content = onnx.load_model_from_string((exported[0] / "model.onnx").read_bytes())
    entry = next(one for one in content.metadata_props if one.key == "paucal")
    card = json.loads(entry.value)
    card["classes"], card["backbone"]["num_classes"] = card["classes"][:2], 2
    entry.value = json.dumps(card)
    path.write_bytes(content.SerializeToString())
    with pytest.raises(UserError, match="2 classes: export the model again"):
        paucal.load(path)
    del content.metadata_props[:]
    path.write_bytes(content.SerializeToString())
    with pytest.raises(UserError, match="was not written by 'paucal export'"):
        paucal.load(path)
