"""`paucal serve` from the command line."""

import json
import os
import shutil
import signal
import socket
import sys
import time
import urllib.request
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import paucal
from cli.calls import QUICK, call, failure, make_photos
from paucal.cli.main import main
from paucal.runner import familiar
from paucal.runner.console import LoggedConsole
from paucal.runner.familiar import FILE_NAME, load_familiarity
from paucal.runs import RunFolder
from processes import start


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    photos = make_photos(folder / "photos", each=20)
    assert call("train", photos, *QUICK, "--init", "none", "--output", folder / "run") == 0
    return folder / "run"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def serve(said: Path, *words: str) -> None:
    """Serve as the command does, with what it says in a file."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.exit(main(["serve", *words]))


def test_serve__answers_until_it_is_interrupted(run, tmp_path):
    port, output = free_port(), tmp_path / "said.txt"
    output.touch()
    # By default the server takes bfloat16 where it measures that as faster.
    served = start(serve, output, str(run), "--port", str(port), "--precision", "32-true")
    while "press Ctrl-C to stop" not in (said := output.read_text()):
        assert served.is_alive(), said
        time.sleep(0.02)
    assert f"http://127.0.0.1:{port}/" in said
    content = (run.parent / "photos" / "class0" / "0.png").read_bytes()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/classify", content, {"Content-Type": "image/png"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = json.load(answer)
    os.kill(served.pid, signal.SIGINT)
    served.join(30)
    assert found["unlike"]["known"] is True
    wanted = paucal.predict(str(run), str(run.parent / "photos" / "class0" / "0.png"))[0]
    assert found["classes"][0]["name"] == wanted.predicted
    assert found["classes"][0]["probability"] == pytest.approx(wanted.confidence, abs=1e-4)
    assert "Traceback" not in output.read_text()
    assert served.exitcode in (0, 130)


def test_serve__of_a_port_in_use_says_so(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port} of 127.0.0.1 is not available" in failure(capsys, "serve", run, "--port", port)


def test_serve__of_what_is_no_model_or_address_says_so(run, tmp_path, capsys):
    assert "nothing" in failure(capsys, "serve", tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "empty" in failure(capsys, "serve", tmp_path / "empty")
    assert "is not a valid address" in failure(capsys, "serve", run, "--host", "no such host")
    assert "--port" in failure(capsys, "serve", run, "--port", 0)


def test_serve__of_a_run_that_has_no_model_yet_says_so(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "stopped")
    (tmp_path / "stopped" / "model.safetensors").unlink()
    message = failure(capsys, "serve", tmp_path / "stopped")
    assert "stopped" in message
    assert "has not saved a model yet" in message


def test_serve__of_another_programs_onnx_says_so(tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, 8, 8]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "other", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), tmp_path / "other.onnx")
    assert "other.onnx" in failure(capsys, "serve", tmp_path / "other.onnx")


def test_serve__without_its_extra_names_it(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'paucal[serve]'" in failure(capsys, "serve", run)


def test_familiarity__is_measured_once_for_these_weights_and_again_for_others(run, monkeypatch):
    folder, model = RunFolder(run), paucal.load(run)
    (run / FILE_NAME).unlink(missing_ok=True)
    first = load_familiarity(folder, model, LoggedConsole())
    kept = load_file(run / FILE_NAME)
    torch.testing.assert_close(kept["features"].norm(dim=1), torch.ones(len(kept["features"])))
    split = (run / "split.csv").read_text()
    assert len(kept["features"]) == split.count(",train")
    monkeypatch.setattr(familiar, "_fit_to_run", lambda *given: pytest.fail("it was measured again"))
    again = load_familiarity(folder, model, LoggedConsole())
    assert (first is not None, again is not None) == (True, True)
    assert again.limit == pytest.approx(first.limit)
    monkeypatch.setattr(familiar, "_weights_key", lambda run: "others")
    measured = []
    monkeypatch.setattr(familiar, "_fit_to_run", lambda *given: measured.append(1))
    assert load_familiarity(folder, model, LoggedConsole()) is None
    assert measured == [1]


@pytest.mark.parametrize("damage", [b"", b"no tensors", b"\xff" * 100])
def test_familiarity__that_is_damaged_is_measured_anew(run, damage):
    (run / FILE_NAME).write_bytes(damage)
    found = load_familiarity(RunFolder(run), paucal.load(run), LoggedConsole())
    assert found is not None
    assert found.features.shape[0] > 1
    assert len(load_file(run / FILE_NAME)["features"]) == len(found.features)


def test_familiarity__without_the_images_is_not_known_and_said(run, monkeypatch, caplog):
    (run / FILE_NAME).unlink(missing_ok=True)
    photos = run.parent / "photos"
    photos.rename(run.parent / "away")
    try:
        with caplog.at_level("INFO"):
            assert load_familiarity(RunFolder(run), paucal.load(run), LoggedConsole()) is None
    finally:
        (run.parent / "away").rename(photos)
    assert "images cannot be compared with the training images" in caplog.text
