"""Weight files that somebody else has made: read without running anything, or refused in one sentence."""

import argparse
import os
import pickle
import zipfile

import pytest
import safetensors.torch
import torch

from paucal.runs.weights import read_untrusted
from paucal.types import UserError


class Hostile:
    """Runs a command when unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def refusal(path, **options) -> str:
    with pytest.raises(UserError) as caught:
        read_untrusted(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    assert repr(str(path)) in text
    return text


def state():
    return {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


@pytest.mark.parametrize("legacy", [False, True])
def test_torch_files__give_their_tensors_and_nothing_else(tmp_path, legacy):
    path = tmp_path / "w.pth"
    content = {"model": state(), "epoch": 3, "args": argparse.Namespace(lr=1), 7: torch.ones(1), "history": [1, "x"]}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    tree = read_untrusted(path)
    assert list(tree) == ["model"]
    assert torch.equal(tree["model"]["a.weight"], state()["a.weight"])


def test_safetensors__are_read(tmp_path):
    safetensors.torch.save_file(state(), tmp_path / "w.safetensors")
    assert torch.equal(read_untrusted(tmp_path / "w.safetensors")["a.bias"], torch.ones(2))


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_code__is_refused_and_does_not_run(tmp_path, kind):
    path, mark = tmp_path / "w.pth", tmp_path / "ran"
    content = {"state_dict": state(), "x": Hostile(mark)}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(content["x"]))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    assert ("posix.system" in refusal(path)) == (kind != "pickle")
    assert "could run code when opened" in refusal(path)
    assert not mark.exists()
    torch.load(path, weights_only=False) if kind != "pickle" else pickle.loads(path.read_bytes())
    assert mark.exists()  # the file would have run code


def test_a_pickled_model__is_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pth")
    assert "torch.nn.modules.linear.Linear" in refusal(tmp_path / "w.pth")


@pytest.mark.parametrize("name", ["w.pth", "legacy.pth", "w.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_truncated_files__are_refused(tmp_path, name, share):
    path = tmp_path / name
    big = {"weight": torch.randn(5000)}
    if name.endswith("safetensors"):
        safetensors.torch.save_file(big, path)
    else:
        torch.save(big, path, _use_new_zipfile_serialization=name == "w.pth")
    read_untrusted(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert any(word in refusal(path) for word in ("truncated", "not a readable safetensors file"))


def test_other_files__are_refused(tmp_path):
    (tmp_path / "photo.pth").write_bytes(b"\xff\xd8\xff\xe0 no weights")
    assert "not a weights file" in refusal(tmp_path / "photo.pth")
    (tmp_path / "notes.pth").write_text("hello")
    assert "not a weights file" in refusal(tmp_path / "notes.pth")
    torch.save({"epoch": 3, "names": ["a"]}, tmp_path / "empty.pth")
    assert "no named tensors" in refusal(tmp_path / "empty.pth")
    torch.save([torch.ones(2)], tmp_path / "list.pth")
    assert "no named tensors" in refusal(tmp_path / "list.pth")
    assert "There is no file" in refusal(tmp_path / "absent.pth")


def test_sizes__are_limited_on_disk_unpacked_and_claimed(tmp_path):
    path = tmp_path / "w.pth"
    torch.save({"weight": torch.zeros(3000)}, path)
    assert "GiB" in refusal(path, max_bytes=10_000)
    bomb = tmp_path / "bomb.pth"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry.filename))
    assert bomb.stat().st_size < 10_000
    assert "GiB" in refusal(bomb, max_bytes=10_000)
    torch.save({"weight": torch.zeros(1).expand(10**9), "bias": torch.zeros(2)}, path)  # 4 bytes that claim to be 4 GB
    assert path.stat().st_size < 10_000
    assert set(read_untrusted(path)) == {"bias"}


def test_odd_tensors_and_endless_mappings__are_left_out(tmp_path):
    loop: dict = {"good": state(), "sparse": torch.eye(3).to_sparse(), "void": torch.empty(2, device="meta")}
    loop["self"] = loop
    deep = inner = {}
    for _ in range(50):
        inner["x"] = {}
        inner = inner["x"]
    inner["weight"] = torch.ones(1)
    torch.save({**loop, "deep": deep}, tmp_path / "w.pth")
    tree = read_untrusted(tmp_path / "w.pth")
    assert set(tree) == {"good"}  # what comes again is not read again
    assert set(tree["good"]) == set(state())
