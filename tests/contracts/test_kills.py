"""A run that is killed again and again ends with the weights of one that was left alone."""

import multiprocessing
import random
import time
from pathlib import Path

import pytest
import torch

from contracts import sessions
from paucal.runs.weights import load_checkpoint

KILLS = 20
STEPS = (1, 14)  # of a session before it is killed; the run has 240
DELAY = 0.03  # seconds after the last of them, at most: in the middle of a step, of saving, of loading images
PROCESSES = multiprocessing.get_context("forkserver")
# Imported once, not in every session. (The server of Python 3.11 does not know where the tests are.)
PROCESSES.set_forkserver_preload(
    ["paucal.training", "paucal.data.sources.opening", "torch._dynamo", "sklearn.datasets"]
)


def start(name: str, folder: Path, workers: int):
    steps = PROCESSES.Value("i", 0)
    process = PROCESSES.Process(target=sessions.session, args=(name, folder, workers, steps))
    process.start()
    return process, steps


def finish(name: str, folder: Path, workers: int) -> None:
    process, _ = start(name, folder, workers)
    process.join()
    assert process.exitcode == 0


def kill_after(process, counted, steps: int, delay: float) -> None:
    while counted.value < steps and process.is_alive():
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.join()
    assert process.exitcode == -9, "the run ended before it was killed often enough: make it longer"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "workers"), [("geometry", 0), ("two_networks", 2)])
def test_twenty_kills__leave_no_trace_in_the_weights(name, workers, tmp_path):
    finish(name, tmp_path / "straight", 0)
    moments = random.Random(workers)
    positions = []
    for _ in range(KILLS):
        process, counted = start(name, tmp_path / "killed", workers)
        kill_after(process, counted, moments.randint(*STEPS), moments.uniform(0, DELAY))
        last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
        positions.append(load_checkpoint(last)["global_step"] if last.exists() else 0)
    assert len(set(positions)) > KILLS / 3  # it was really stopped at many places
    finish(name, tmp_path / "killed", workers)
    for kind in ("last.ckpt", "best.ckpt"):
        one, two = (load_checkpoint(tmp_path / run / "checkpoints" / kind) for run in ("straight", "killed"))
        assert one["state_dict"].keys() == two["state_dict"].keys()
        assert all(torch.equal(value, two["state_dict"][key]) for key, value in one["state_dict"].items())
        average = [state["callbacks"]["MovingAverage"] for state in (one, two)]
        assert average[0]["updates"] == average[1]["updates"] > 0
        assert all(torch.equal(v, average[1]["average"][k]) for k, v in average[0]["average"].items())
