"""Runs that SLURM requeues, and runs on a Ray cluster that loses a machine, end as if nothing had happened."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli import killing
from cli.calls import TINY
from paucal.runner.elsewhere.command import Command
from paucal.runner.elsewhere.ray import train_on_ray
from paucal.runner.elsewhere.slurm import submit
from paucal.runs.ledger import LEDGER_FOLDER
from paucal.verbs.runs.verify import verify_run

WORDS = (*TINY, "-b", "64", "--epochs", "3", "--device", "cpu", "--ledger")


def wait_for_steps(run: Path, least: int) -> None:
    """Wait until the ledger of a run has as many bytes: 8 for each image."""
    wait_for(lambda: sum(file.stat().st_size for file in (run / LEDGER_FOLDER).glob("*.bin")) >= least)


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + killing.PATIENCE
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_slurm__a_job_that_is_preempted_saves_its_state_and_is_requeued(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    killing.call(tmp_path, ["train", *WORDS, "--output", "whole"])
    run = tmp_path / "run"
    job = submit(Command("train", WORDS, str(run), str(tmp_path)), 1, 1, False, {"timeout_min": 60}, cluster="local")
    wait_for_steps(run, 5_000)
    (task,) = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
    os.kill(int(task), submitit.JobEnvironment._usr_sig())  # as SLURM does
    assert job.result() == 0
    assert killing.differences(tmp_path / "whole", run) == []
    verdict = verify_run(run)
    assert verdict.repeated_steps == 0  # the state was saved before the job was requeued
    assert verdict.processes == (1, 1)


def holds_a_run(node) -> bool:
    """Return whether a process of paucal descends from a node's raylet."""
    raylet = node.all_processes["raylet"][0].process.pid
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"paucal.cli.main" not in (entry / "cmdline").read_bytes():
                continue
            parent = entry.name
            while parent not in ("0", "1", str(raylet)):
                parent = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # the process has ended
            continue
        if parent == str(raylet):
            return True
    return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.filterwarnings("ignore")  # those of Ray
def test_ray__a_machine_is_lost_and_the_run_goes_on_on_the_other(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = (*WORDS, "--epochs", "20")  # seconds pass until the processes of a lost machine end
    whole = [sys.executable, "-m", "paucal.cli.main", "train", *words, "--devices", "2", "--output", "whole"]
    subprocess.run(whole, cwd=tmp_path, env=dict(os.environ), check=True, stdout=subprocess.DEVNULL)
    run = tmp_path / "run"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    lost = []
    try:
        nodes = [cluster.add_node(num_cpus=3) for _ in range(2)]
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)

        def lose() -> None:
            wait_for(lambda: (run / "checkpoints" / "last.ckpt").exists())
            lost.append(next(node for node in nodes if holds_a_run(node)))
            cluster.remove_node(lost[0], allow_graceful=False)

        thread = threading.Thread(target=lose, daemon=True)
        thread.start()
        assert train_on_ray(Command("train", words, str(run), str(tmp_path)), 2, "cpu", threads=1)
        thread.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert len(lost) == 1
    assert killing.differences(tmp_path / "whole", run) == []
    verdict = verify_run(run)
    assert verdict.processes == (2, 2)
