"""Files of a run that are something else: a device without an end, a pipe without a writer, a folder."""

import os
import resource
import threading

import pytest
import safetensors.torch
import torch

from paucal.data.splits.split_csv import read_rows
from paucal.reading import read_bytes, read_text
from paucal.runs import RunFolder
from paucal.runs.weights import load_checkpoint, read_weights
from paucal.types import UserError

READERS = {
    "config.yaml": lambda run: run.read_yaml("config.yaml"),
    "model.json": lambda run: run.read_json("model.json"),
    "metrics.csv": lambda run: run.read_rows(),
    "split.csv": lambda run: read_rows(run.split),
    "model.safetensors": lambda run: read_weights(run.weights),
    "checkpoints/last.ckpt": lambda run: load_checkpoint(run.last),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_run_file__that_is_no_regular_file_is_refused_at_once(name, kind, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    if kind == "device":
        (tmp_path / name).symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).mkdir()
    caught: list[Exception] = []

    def read():
        try:
            READERS[name](RunFolder(tmp_path))
        except Exception as problem:
            caught.append(problem)

    thread = threading.Thread(target=read, daemon=True)  # a test that hangs would say less
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for ever"
    assert isinstance(caught[0], UserError)
    assert name in str(caught[0])
    assert str(caught[0]).count("\n") == 0


def test_read_bytes__refuses_one_byte_too_many(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UserError, match="is larger than 4 bytes"):
        read_bytes(tmp_path / "file", 4)
    (tmp_path / "file").write_bytes(b"caf\xe9")
    assert read_text(tmp_path / "file", 100, errors="surrogateescape") == "caf\udce9"


def test_weights__longer_than_the_memory_are_refused(tmp_path):
    weights = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(2)}, weights)
    os.truncate(weights, 1 << 33)  # sparse: holds nothing
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 33, hard))
    try:
        with pytest.raises(UserError, match=r"model\.safetensors' is not a readable safetensors file"):
            read_weights(weights)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
