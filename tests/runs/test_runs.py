import json
import os
import pickle

import pytest
import torch

from paucal.runs import RunFolder, create_run, describe_environment, open_run
from paucal.runs.weights import load_checkpoint, read_weights, save_weights
from paucal.types import UserError
from paucal.writing import link_or_copy, write_atomically, write_text


def finished(path):
    run = create_run(path)
    run.write_yaml("config.yaml", {"settings": {"lr": 0.1}})
    return run


def test_atomic_write__keeps_the_old_content_when_the_writer_fails(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")

    def broken(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, broken)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("links", [True, False])
def test_kept_file__stays_what_it_was_when_the_source_is_replaced(links, tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError("this disk has no hard links")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    source, kept = tmp_path / "last", tmp_path / "healthy"
    for content in (b"first", b"second"):
        write_atomically(source, lambda file, content=content: file.write(content))
        link_or_copy(source, kept)
        link_or_copy(source, kept)  # the two names are then of one file
        write_atomically(source, lambda file: file.write(b"later"))
        assert kept.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["healthy", "last"]


def test_text__brings_back_file_names_of_any_bytes(tmp_path):
    run = RunFolder(tmp_path)
    run.write_json("summary.json", {"data": "caf\udce9", "classes": ["é"]})
    text = (tmp_path / "summary.json").read_text(encoding="utf-8")  # which any program can read
    assert json.loads(text)["data"] == "caf\udce9"
    assert run.read_json("summary.json") == {"data": "caf\udce9", "classes": ["é"]}


def test_create_run__numbers_from_the_highest(tmp_path):
    assert create_run(None, tmp_path).path.name == "1"
    (tmp_path / "7").mkdir()
    (tmp_path / "notes").mkdir()
    assert create_run(None, tmp_path).path.name == "8"


def test_create_run__refuses_what_exists(tmp_path):
    run = finished(tmp_path / "run")
    (run.path / "summary.json").unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"exists already: resume it with --resume .*run, .*--overwrite"):
        create_run(run.path)
    run.write_json("summary.json", {})
    with pytest.raises(UserError, match=r"exists already, a finished run: .*--overwrite") as problem:
        create_run(run.path)
    assert "--resume" not in str(problem.value)


def test_create_run__offers_no_way_with_what_is_no_run(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").touch()
    (tmp_path / "file").touch()
    for name, words in (
        ("folder", "and is not empty: choose another folder."),
        ("file", "and is not a folder: choose"),
    ):
        with pytest.raises(UserError, match=f"exists already {words}") as problem:
            create_run(tmp_path / name)
        assert "--" not in str(problem.value).removeprefix("--output")


def test_open_run__takes_the_newest_below_a_folder(tmp_path):
    for age, name in enumerate(("b", "a")):
        run = finished(tmp_path / name)
        os.utime(run.config, (1000 + age, 1000 + age))
    assert open_run(tmp_path).path.name == "a"
    assert open_run(tmp_path / "b").path.name == "b"


@pytest.mark.parametrize(("name", "message"), [("none", "does not exist"), ("empty", "contains no run")])
def test_open_run__says_what_is_missing(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        open_run(tmp_path / name)


def test_rows__come_back_with_holes(tmp_path):
    run = finished(tmp_path / "run")
    assert run.read_rows() == []
    rows = [{"epoch": 1.0, "loss": 0.5}, {"epoch": 2.0, "extra": 1e-7}]
    run.write_rows(rows)
    assert run.read_rows() == rows
    assert run.metrics.read_text().splitlines()[0] == "epoch,loss,extra"


def test_mappings__damaged_ones_are_named(tmp_path):
    run = finished(tmp_path / "run")
    assert run.read_yaml("config.yaml") == {"settings": {"lr": 0.1}}
    (run.path / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"config\.yaml' cannot be read"):
        run.read_yaml("config.yaml")
    (run.path / "model.json").write_text("[1]")
    with pytest.raises(UserError, match="is not a mapping"):
        run.read_json("model.json")
    with pytest.raises(UserError, match=r"summary\.json' is missing"):
        run.read_json("summary.json")


def test_config__cannot_run_code(tmp_path):
    run = finished(tmp_path / "run")
    (run.path / "config.yaml").write_text("!!python/object/apply:os.mkdir ['" + str(tmp_path / "hacked") + "']")
    with pytest.raises(UserError, match="cannot be read"):
        run.read_yaml("config.yaml")
    assert not (tmp_path / "hacked").exists()


def test_weights__come_back_equal_also_when_shared(tmp_path):
    shared = torch.arange(4.0)
    state = {"a": shared, "b": shared, "n": torch.tensor(3), "view": torch.arange(6.0).view(2, 3).T}
    save_weights(tmp_path / "model.safetensors", state)
    back = read_weights(tmp_path / "model.safetensors")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_weights__other_files_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(UserError, match="not a readable safetensors file"):
        read_weights(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="is missing"):
        read_weights(tmp_path / "none.safetensors")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


def test_checkpoint__with_code_in_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state": Evil()}, tmp_path / "evil.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "short.ckpt").write_bytes(b"PK\x03\x04")
    for name in ("evil.ckpt", "plain.ckpt", "short.ckpt"):
        with pytest.raises(UserError, match="not a checkpoint of paucal or is damaged"):
            load_checkpoint(tmp_path / name)
    assert not (tmp_path / "hacked").exists()


def test_environment__is_json_and_names_the_versions():
    record = describe_environment("cpu")
    assert json.loads(json.dumps(record)) == record
    assert torch.__version__.startswith(record["packages"]["torch"])


def test_folder__paths_stay_inside():
    run = RunFolder(path := __import__("pathlib").Path("x"))
    for file in (
        run.config,
        run.split,
        run.metrics,
        run.last,
        run.best,
        run.weights,
        run.card,
        run.plots,
        run.log,
    ):
        assert path in file.parents


def test_write_yaml__writes_a_value_twice_rather_than_an_alias_that_is_not_read(tmp_path):
    run, twice = create_run(tmp_path / "run"), [0.05, 0.4]
    run.write_yaml("config.yaml", {"settings": {"local_scale": twice, "global_scale": twice}})
    assert run.read_yaml("config.yaml")["settings"] == {"local_scale": [0.05, 0.4], "global_scale": [0.05, 0.4]}


def test_disk__that_is_full_is_named_and_the_old_state_stays(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "last.ckpt"
    write_atomically(path, lambda file: torch.save({"state": torch.zeros(4)}, file))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # no file may grow beyond, as on a full disk
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_atomically(path, lambda file: torch.save({"state": torch.zeros(400_000)}, file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(path)
    assert load_checkpoint(path)["state"].tolist() == [0, 0, 0, 0]
    assert list(tmp_path.iterdir()) == [path]
