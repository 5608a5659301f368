"""A run that is killed again and again ends with the weights of one that was left alone."""

import multiprocessing
import random
from pathlib import Path

import pytest
import torch

from contracts import sessions
from paucal.runs import load_checkpoint

KILLS = 20
SESSION = (0.02, 0.9)  # seconds from a session's first step to its end
PROCESSES = multiprocessing.get_context("forkserver")
# Imported once, not in every session. (The server of Python 3.11 does not know where the tests are.)
PROCESSES.set_forkserver_preload(["paucal.training", "paucal.data.digits", "torch._dynamo", "sklearn.datasets"])


def start(name: str, folder: Path, workers: int):
    event = PROCESSES.Event()
    process = PROCESSES.Process(target=sessions.session, args=(name, folder, workers, event))
    process.start()
    assert event.wait(120)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(("name", "workers"), [("geometry", 0), ("two_networks", 2)])
def test_twenty_kills__leave_no_trace_in_the_weights(name, workers, tmp_path):
    straight = start(name, tmp_path / "straight", 0)
    straight.join()
    assert straight.exitcode == 0
    moments = random.Random(workers)
    positions = []
    for _ in range(KILLS):
        process = start(name, tmp_path / "killed", workers)
        process.join(moments.uniform(*SESSION))
        process.kill()
        process.join()
        assert process.exitcode == -9, "the run ended before it was killed often enough: make it longer"
        last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
        positions.append(load_checkpoint(last)["global_step"] if last.exists() else 0)
    assert len(set(positions)) > KILLS / 3  # it was really stopped at many places
    final = start(name, tmp_path / "killed", workers)
    final.join()
    assert final.exitcode == 0
    for kind in ("last.ckpt", "best.ckpt"):
        one, two = (load_checkpoint(tmp_path / run / "checkpoints" / kind) for run in ("straight", "killed"))
        assert one["state_dict"].keys() == two["state_dict"].keys()
        assert all(torch.equal(value, two["state_dict"][key]) for key, value in one["state_dict"].items())
        average = [state["callbacks"]["MovingAverage"] for state in (one, two)]
        assert average[0]["updates"] == average[1]["updates"] > 0
        assert all(torch.equal(v, average[1]["average"][k]) for k, v in average[0]["average"].items())
