"""Runs of every verb that are stopped and killed at random moments, and go on: nothing is lost or used twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli import killing
from cli.calls import make_photos
from paucal.runs.ledger import LEDGER_FOLDER
from paucal.verbs.runs.verify import verify_run

SEED, KILLS = 0, 3


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    killing.make_images(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("verb", killing.COMMANDS)
def test_kills__leave_no_trace_in_the_run(verb, home):
    begin = time.monotonic()
    killing.call(home, [*killing.COMMANDS[verb], *killing.COMMON, "--output", f"{verb}-whole"])
    longest = time.monotonic() - begin
    dice, tally, killed = random.Random(SEED), killing.Tally(), ""
    while not sum(tally.kills.values()):  # a machine that is quieter now may end the run before the first kill
        killed = f"{verb}-killed-{longest:.3f}"  # not "shards", the folder of the images
        tally = killing.disturb(home, verb, killed, KILLS, dice, longest)
        assert tally.problems == []
        longest /= 2
    assert killing.differences(home / f"{verb}-whole", home / killed) == []


def disturb(words: list[str], run: Path, dice: random.Random, stop: signal.Signals, victim: str = "first") -> int:
    """Start a command, and send a signal some steps later; return the exit code, negative for the signal's."""
    command = [sys.executable, "-m", "paucal.cli.main", *words]
    with (run.parent / "log.txt").open("a") as log:
        before = written(run)
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
        wanted = before + dice.randint(2_000, 6_000)
        while written(run) < wanted and process.poll() is None:
            time.sleep(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]) if victim == "second" else process.pid, stop)
        return process.wait(timeout=killing.PATIENCE)


def written(run: Path) -> int:
    return sum(file.stat().st_size for file in (run / LEDGER_FOLDER).glob("*.bin"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the second process in /proc")
@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_kill_of_one_of_two_processes__ends_the_other_and_one_goes_on_alone(verb, tmp_path, monkeypatch):
    make_photos(tmp_path / "photos", 3, 40)
    monkeypatch.chdir(tmp_path)
    dice, run = random.Random(SEED), tmp_path / "run"
    words = [*killing.COMMANDS[verb], *killing.COMMON, "--output", "run", "--devices", "2"]
    assert disturb(words, run, dice, signal.SIGTERM) == 130
    assert disturb([words[0], "--resume", "run"], run, dice, signal.SIGKILL, "second") == 2
    assert "another process of this run ended" in (tmp_path / "log.txt").read_text()
    assert disturb([words[0], "--resume", "run", "--devices", "1"], run, dice, signal.SIGTERM) == 130
    killing.call(tmp_path, [words[0], "--resume", "run"])
    verdict = verify_run(run)
    assert verdict.clean
    assert verdict.processes == (2, 2, 1, 1)
    assert verdict.repeated_steps > 0  # the kill really cost something
