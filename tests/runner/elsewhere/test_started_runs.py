"""Runs that SLURM requeues end as if nothing had happened."""

import os
import sys
import time
from pathlib import Path

import pytest

from cli import killing
from cli.calls import TINY
from paucal.runner.elsewhere.command import Command
from paucal.runner.elsewhere.slurm import submit
from paucal.runs.ledger import FOLDER
from paucal.verbs.runs.verify import verify_run

WORDS = (*TINY, "-b", "64", "--epochs", "3", "--device", "cpu", "--ledger")


def wait_for_steps(run: Path, least: int) -> None:
    """Wait until the ledger of a run has as many bytes: 8 for each image."""
    end = time.monotonic() + killing.PATIENCE
    while sum(file.stat().st_size for file in (run / FOLDER).glob("*.bin")) < least:
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
