"""One writer at a time, on one machine and on several that share a disk."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from paucal.runs import lock as locks
from paucal.runs.lock import LOCK_FILE, RunLock, is_locked, require_unlocked
from paucal.types import UserError


def written_by(folder, age=0.0, **changes):
    """Put a lock of another process into a folder, whose last sign of life is some seconds old."""
    holder = {"token": "theirs", "pid": os.getppid(), "host": "elsewhere", "space": "elsewhere", "since": "noon"}
    path = folder / LOCK_FILE
    path.write_text(json.dumps(holder | changes))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_lock__is_held_by_one_and_free_afterwards(tmp_path):
    first = RunLock(tmp_path)
    first.acquire()
    held = json.loads((tmp_path / LOCK_FILE).read_text())
    assert held["pid"] == os.getpid()
    pattern = f"is being written by process {os.getpid()} on .*: wait until that process ends, or stop it"
    with pytest.raises(UserError, match=pattern):
        RunLock(tmp_path).acquire()
    with pytest.raises(UserError, match="is being written"):
        require_unlocked(tmp_path)
    first.release()
    require_unlocked(tmp_path)
    second = RunLock(tmp_path)
    second.acquire()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_lock__of_another_machine_is_live_until_it_falls_silent(tmp_path):
    written_by(tmp_path, age=0.5 * locks.DEAD_AFTER_SECONDS)
    with pytest.raises(UserError, match=r"process .* on elsewhere, since noon"):
        RunLock(tmp_path).acquire()
    assert json.loads((tmp_path / LOCK_FILE).read_text())["token"] == "theirs"
    written_by(tmp_path, age=1.5 * locks.DEAD_AFTER_SECONDS)
    lock = RunLock(tmp_path)
    lock.acquire()
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    lock.release()


def test_lock__of_a_killed_process_of_this_machine_is_free_at_once(tmp_path):
    # Named as the command, so that importing paucal does not load timm.
    code = f"import os, sys; sys.argv[0] = 'paucal'; from pathlib import Path; from paucal.runs.lock import RunLock; \
lock = RunLock(Path({str(tmp_path)!r})); lock.acquire(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert (tmp_path / LOCK_FILE).exists()
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.release()
    # A number that another process has been given since, as after a restart of a container.
    written_by(tmp_path, pid=os.getpid(), space=locks.pid_namespace())
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.release()
    written_by(tmp_path, pid=os.getppid(), space=locks.pid_namespace())
    with pytest.raises(UserError, match="is being written"):
        RunLock(tmp_path).acquire()


@pytest.mark.parametrize("lives", [True, False])
def test_lock__after_a_jump_of_the_clock_the_next_renewal_counts(tmp_path, monkeypatch, lives):
    monkeypatch.setattr(locks, "RENEWAL_SECONDS", 0.2)
    path = written_by(tmp_path, age=3600, pid=os.getppid(), space=locks.pid_namespace())
    if lives:
        threading.Timer(0.1, os.utime, (path,)).start()
        with pytest.raises(UserError, match="is being written"):
            RunLock(tmp_path).acquire()
        os.utime(path, (1, 1))
        threading.Timer(0.1, os.utime, (path,)).start()
        with pytest.raises(UserError, match="is being written"):
            require_unlocked(tmp_path)  # what follows may remove the folder
        return
    lock = RunLock(tmp_path)  # the number of a dead process was given to another one
    lock.acquire()
    lock.release()


def test_is_locked__answers_without_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_is_renewed", lambda path: pytest.fail("it waited"))
    for age in (0, 3600):
        written_by(tmp_path, age=age, pid=os.getppid(), space=locks.pid_namespace())
        assert is_locked(tmp_path) == (age == 0)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"token": 1}', "[" * 5000])
def test_lock__that_says_nothing_counts_by_its_age(tmp_path, content):
    (tmp_path / LOCK_FILE).write_text(content)
    with pytest.raises(UserError, match="by another process"):
        RunLock(tmp_path).acquire()
    os.utime(tmp_path / LOCK_FILE, (1, 1))
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.release()


def test_lock__gives_signs_of_life_and_notices_when_it_was_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "RENEWAL_SECONDS", 0.05)
    lock = RunLock(tmp_path)
    lock.acquire()
    os.utime(tmp_path / LOCK_FILE, (1, 1))
    deadline = time.monotonic() + 5
    while (tmp_path / LOCK_FILE).stat().st_mtime < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert time.time() - (tmp_path / LOCK_FILE).stat().st_mtime < 5
    lock.check()
    theirs = written_by(tmp_path)
    while not lock.lost and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(UserError, match="another process has taken over the run"):
        lock.check()
    lock.release()
    assert json.loads(theirs.read_text())["token"] == "theirs"


def test_lock__a_process_that_slept_looks_before_it_writes(tmp_path, monkeypatch):
    lock = RunLock(tmp_path)
    lock.acquire()
    written_by(tmp_path)
    lock.check()  # a sign of life was given just now
    lock._last_renewal -= 4 * locks.RENEWAL_SECONDS
    with pytest.raises(UserError, match="another process has taken over"):
        lock.check()
    lock.release()


@pytest.mark.parametrize("links", [True, False])
def test_lock__many_at_once_get_it_one_by_one(tmp_path, monkeypatch, links):
    def no_links(*_):
        raise OSError("this disk has no hard links")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    written_by(tmp_path, age=1000)
    got, barrier = [], threading.Barrier(16)

    def take():
        lock = RunLock(tmp_path)
        barrier.wait()
        try:
            lock.acquire()
            got.append(lock)
        except UserError:
            pass

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    got[0].release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("age", [0.0, 1000.0])
def test_lock__somebody_else_who_follows_the_same_dead_holder_comes_first(tmp_path, age):
    dead = written_by(tmp_path, age=1000)
    mark = tmp_path / f".{LOCK_FILE}.after-{locks._file_identity(dead)}.tmp"
    mark.write_text(dead.read_text().replace("theirs", "rival"))
    os.utime(mark, (time.time() - age, time.time() - age))
    lock = RunLock(tmp_path)
    if age:  # the rival died on the way
        lock.acquire()
        lock.release()
        assert list(tmp_path.iterdir()) == []
    else:
        with pytest.raises(UserError, match="is being written"):
            lock.acquire()
        assert json.loads(dead.read_text())["token"] == "theirs"
