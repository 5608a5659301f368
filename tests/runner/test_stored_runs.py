"""Runs on object storage, for which fsspec's memory stands: what a reader finds, and who may write."""

import inspect
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from lightning.pytorch import Callback

import paucal
from cli.calls import make_photos
from paucal.cli.main import main
from paucal.data.decoded.cache_folder import CACHE_VARIABLE, STORED_RUNS, clear_stored_runs, folder_bytes
from paucal.data.shards import requests
from paucal.runner import snapshots, storage_lock, stored_runs
from paucal.runner.console import SilentConsole
from paucal.runner.stored_runs import StoredRun, written_to_storage
from paucal.runs import RunFolder
from paucal.training.plan import Plan
from paucal.types import UserError

URL = "memory://bucket/runs/a"
SETTINGS = {
    "model": "vit_mini",
    "model_args": ["depth=1"],
    "img_size": [16],
    "epochs": 3,
    "batch_size": 8,
    "workers": 0,
    "seed": 1,
}


@pytest.fixture(autouse=True)
def storage(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(requests, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(requests, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(storage_lock, "DEAD_AFTER_SECONDS", 0.3)
    monkeypatch.setattr(storage_lock, "RENEWAL_SECONDS", 0.05)
    files = fsspec.filesystem("memory")
    files.makedirs("/bucket", exist_ok=True)
    yield files
    files.rm("/bucket", recursive=True)


@pytest.fixture
def run(tmp_path) -> Path:
    """A folder with what stands for a run."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "plots").mkdir()
    for name in ("config.yaml", "checkpoints/last.ckpt", "plots/a.png", "train.log"):
        (folder / name).write_text(f"first {name}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def objects(storage) -> int:
    return len(storage.ls("/bucket/runs/a/objects", detail=False))


def test_publish__a_reader_finds_the_newest_whole_state(run, storage, tmp_path, monkeypatch):
    stored, there = StoredRun(URL), tmp_path / "there"
    stored.publish(run)
    StoredRun(URL).fetch(there)
    first = contents(run)
    assert contents(there) == first
    assert objects(storage) == 4
    (run / "checkpoints/last.ckpt").write_text("second")
    (run / "plots/a.png").unlink()
    monkeypatch.setattr(stored._storage, "pipe_file", lambda *args, **kw: 1 / 0)  # killed before the manifest
    with pytest.raises(requests.RetriesFailed):
        stored.publish(run)
    StoredRun(URL).fetch(there)
    assert contents(there) == first
    monkeypatch.undo()
    stored.publish(run)
    StoredRun(URL).fetch(there)
    assert contents(there) == contents(run)
    assert objects(storage) == 5  # those of the last two states
    second = contents(run)
    (run / "train.log").write_text("third")
    stored.publish(run)
    assert objects(storage) == 4
    storage.pipe_file("/bucket/runs/a/manifest-1.json", b'{"number": 3, "fil')  # killed while it was written
    StoredRun(URL).fetch(there)
    assert contents(there) == second
    StoredRun(URL).publish(run)
    StoredRun(URL).fetch(there)
    assert contents(there) == contents(run)


def test_publish__makes_the_folders_of_storage_that_has_them(run, tmp_path):
    with written_to_storage(f"file://{tmp_path}/new/runs/a", False, SilentConsole()) as copy:
        run.rename(copy.folder)
    StoredRun(f"file://{tmp_path}/new/runs/a").fetch(tmp_path / "there")
    assert contents(tmp_path / "there") == contents(copy.folder)


def test_publish__sends_only_what_has_changed(run, monkeypatch):
    stored, sent = StoredRun(URL), []
    put = stored._storage.put_file
    monkeypatch.setattr(stored._storage, "put_file", lambda *args: (sent.append(args), put(*args)))
    stored.publish(run)
    assert len(sent) == 4
    (run / "train.log").write_text("more")
    (run / ".hidden.tmp").write_text("unfinished")
    (run / "lock.json").write_text("{}")
    stored.publish(run)
    assert len(sent) == 5


def test_fetch__refuses_damage_and_paths_that_lead_out(run, storage, tmp_path):
    stored = StoredRun(URL)
    with pytest.raises(UserError, match="there is no run at 'memory://bucket/runs/a'"):
        stored.fetch(tmp_path / "there")
    stored.publish(run)
    digest = (stored.manifest() or {})["train.log"][0]
    storage.pipe_file(f"/bucket/runs/a/objects/{digest}", b"first train.lo?")
    with pytest.raises(UserError, match=r"train\.log of the run .* is damaged"):
        StoredRun(URL).fetch(tmp_path / "there")
    assert not (tmp_path / "there" / "train.log").exists()
    storage.rm_file(f"/bucket/runs/a/objects/{digest}")
    with pytest.raises(UserError, match=r"train\.log of the run .* cannot be read"):
        StoredRun(URL).fetch(tmp_path / "there")
    escaping = {"../out": (digest, 3)}
    content = {"number": 9, "files": escaping, "check": stored_runs._manifest_digest(9, escaping)}
    storage.pipe_file("/bucket/runs/a/manifest-0.json", json.dumps(content).encode())
    with pytest.raises(UserError, match=r"\.\./out"):
        StoredRun(URL).fetch(tmp_path / "there")
    for name in stored_runs.MANIFEST_NAMES:
        storage.pipe_file(f"/bucket/runs/a/{name}", b"[]")
    with pytest.raises(UserError, match=r"both manifests of the run .* are damaged"):
        StoredRun(URL).fetch(tmp_path / "there")


def test_publish__takes_checkpoints_of_one_moment(run, tmp_path, monkeypatch):
    copy, calls = snapshots._link_or_copy, []

    def train_meanwhile(source: Path, target: Path, is_linked: bool) -> None:
        copy(source, target, is_linked)
        calls.append(source.name)
        if len(calls) == 1:  # after the first file an epoch ends
            for name in ("best.ckpt", "last.ckpt"):
                (run / "checkpoints" / f".{name}.tmp").write_text(f"second {name}")
                (run / "checkpoints" / f".{name}.tmp").replace(run / "checkpoints" / name)

    (run / "checkpoints/best.ckpt").write_text("first best.ckpt")
    monkeypatch.setattr(snapshots, "_link_or_copy", train_meanwhile)
    StoredRun(URL).publish(run)
    StoredRun(URL).fetch(tmp_path / "there")
    states = {(tmp_path / "there/checkpoints" / name).read_text().split()[0] for name in ("best.ckpt", "last.ckpt")}
    assert states == {"second"}


def test_lock__is_held_by_one_and_taken_over_from_the_dead(storage, monkeypatch):
    path = "/bucket/runs/a/lock.json"
    with StoredRun(URL).lock.held() as lock:
        monkeypatch.setattr(storage_lock, "pid_namespace", lambda: "another machine")
        with pytest.raises(UserError, match="is being written by process"), StoredRun(URL).lock.held():
            pass
        time.sleep(0.2)  # several beats
        lock.check()
        content = storage.cat_file(path)
        assert json.loads(content)["beats"] >= 1
    assert not storage.exists(path)
    storage.pipe_file(path, content)  # of a process that was killed
    with StoredRun(URL).lock.held():
        taken = json.loads(storage.cat_file(path))
        assert taken["token"] != json.loads(content)["token"]
    assert storage.find("/bucket/runs/a") == []


def test_lock__is_taken_over_where_the_number_of_the_dead_is_in_use(storage, monkeypatch):
    path, mine = "/bucket/runs/a/lock.json", StoredRun(URL).lock._content
    for pid in (os.getpid(), os.getppid()):
        storage.pipe_file(path, json.dumps({**mine, "token": "dead", "pid": pid}).encode())
        with StoredRun(URL).lock.held():
            assert json.loads(storage.cat_file(path))["token"] != "dead"


def test_lock__holds_where_storage_knows_no_conditions(storage, monkeypatch):
    pipe = storage.pipe_file
    monkeypatch.setattr(type(storage), "pipe_file", lambda self, path, value, mode="": pipe(path, value))
    with StoredRun(URL).lock.held() as lock:
        monkeypatch.setattr(storage_lock, "pid_namespace", lambda: "another machine")
        with pytest.raises(UserError, match="is being written by process"), StoredRun(URL).lock.held():
            pass
        lock.confirm()


def test_publish__of_a_process_that_was_overtaken_changes_nothing(run, storage):
    stored = StoredRun(URL)
    with stored.lock.held() as lock:
        stored.publish(run, lock.confirm)
        before = {path: storage.cat_file(path) for path in storage.find("/bucket") if "manifest" in path}
        storage.pipe_file("/bucket/runs/a/lock.json", json.dumps({"token": "other"}).encode())
        (run / "train.log").write_text("more")
        with pytest.raises(UserError, match="another process has taken over"):
            stored.publish(run, lock.confirm)
    assert {path: storage.cat_file(path) for path in storage.find("/bucket") if "manifest" in path} == before


def test_lock__that_was_lost_ends_the_run_and_copies_nothing(run, storage):
    with written_to_storage(URL, False, SilentConsole()) as copy:
        other = {"token": "other", "pid": 1, "host": "h", "since": "s", "space": "x", "beats": 0}
        storage.pipe_file("/bucket/runs/a/lock.json", json.dumps(other).encode())
        time.sleep(0.3)
        with pytest.raises(UserError, match="another process has taken over the run"):
            copy.on_train_batch_start(SimpleNamespace(), None, None, 0)  # type: ignore[arg-type]
        run.rename(copy.folder)
    assert not [path for path in storage.find("/bucket") if "manifest" in path]
    assert json.loads(storage.cat_file("/bucket/runs/a/lock.json"))["token"] == "other"


class Interrupt(Callback):
    """Interrupts a run after some steps."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 7:
            raise RuntimeError("the machine is lost")


def test_run__is_resumed_on_another_machine_as_if_nothing_had_happened(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = make_photos(tmp_path / "photos", each=30)
    whole = paucal.train(data, output="whole", ledger=True, **SETTINGS)
    with pytest.raises(UserError, match="--overwrite is not supported on object storage"):
        paucal.train(data, output=URL, overwrite=True, **SETTINGS)
    usual = Plan.__init__.__defaults__ or ()
    every = inspect.signature(Plan).parameters["save_every"].default
    monkeypatch.setattr(Plan.__init__, "__defaults__", tuple(3 if value == every else value for value in usual))
    with pytest.raises(RuntimeError, match="the machine is lost"):
        paucal.train(data, output=URL, ledger=True, callbacks=[Interrupt()], **SETTINGS)
    with pytest.raises(
        UserError, match=r"--output: 'memory://bucket/runs/a' exists already: resume that run with --resume"
    ):
        paucal.train(data, output=URL, **SETTINGS)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "another"))
    assert "checkpoints/last.ckpt" in (StoredRun(URL).manifest() or {})
    assert StoredRun(URL).read_settings()["model"] == "vit_mini"
    assert main(["train", "--resume", URL]) == 0
    assert f"the run is in {URL}" in capsys.readouterr().out
    assert main(["runs", "fetch", URL, "here"]) == 0
    assert RunFolder(Path("here")).finished
    assert json.loads(Path("here/summary.json").read_text())["best_epoch"] > 2  # of what was trained there
    assert Path("here/model.safetensors").read_bytes() == (whole.run / "model.safetensors").read_bytes()
    verdict = paucal.verify_run("here")
    assert (verdict.clean, verdict.processes, verdict.repeated_steps) == (True, (1, 1), 1)
    assert main(["runs", "fetch", URL, "here"]) == 2
    copies = list((tmp_path / "another" / STORED_RUNS).glob("*/run"))
    assert [RunFolder(copy).place for copy in copies] == [URL]
    cache = tmp_path / "another"
    size = folder_bytes(cache / STORED_RUNS)
    (copies[0].parent / stored_runs.UNSENT_FILE).write_text("{}")
    assert (clear_stored_runs(cache), size > 1_000_000) == (0, True)  # it could not be sent
    (copies[0].parent / stored_runs.UNSENT_FILE).unlink()
    assert clear_stored_runs(cache) == size


def test_url__where_only_a_folder_can_be_written_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (["train", "digits", "--folds", "3"], ["compare", "digits", "--seeds", "0"], ["check", "digits"]):
        assert main([*words, "--output", URL]) == 2
        assert f"--output is '{URL}', a URL, but this call writes to this machine" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_run__whose_storage_is_away_is_copied_by_the_next_call(run, monkeypatch, capsys):
    publish = StoredRun.publish
    with written_to_storage(URL, False, SilentConsole()) as copy:
        run.rename(copy.folder)
    monkeypatch.setattr(StoredRun, "publish", lambda *args: 1 / 0)
    with (
        pytest.raises(UserError, match=r"the newest state cannot be copied to .*: the state is in"),
        written_to_storage(URL, True, SilentConsole()) as copy,
    ):
        (copy.folder / "checkpoints/last.ckpt").write_text("newer")
    monkeypatch.setattr(StoredRun, "publish", publish)
    with written_to_storage(URL, True, SilentConsole()) as copy:
        assert (copy.folder / "checkpoints/last.ckpt").read_text() == "newer"
        assert StoredRun(URL).number == 0
        found = StoredRun(URL)
        assert (found.manifest() or {})["checkpoints/last.ckpt"][1] == len("newer")


def test_run__whose_state_was_never_sent_is_kept(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(StoredRun, "publish", lambda *args: 1 / 0)
        with pytest.raises(UserError), written_to_storage(URL, False, SilentConsole()) as copy:
            run.rename(copy.folder)
    with written_to_storage(URL, False, SilentConsole()) as copy:
        (kept,) = copy.folder.parent.glob("unsent-*")
        assert (kept / "checkpoints/last.ckpt").exists()
        assert not copy.folder.exists()
