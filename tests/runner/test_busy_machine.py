"""A whole command on a machine that other programs begin to use while it runs."""

import os
import subprocess
import sys
import time

import pytest

from paucal.cores import count_usable_cores
from paucal.training.keeper import checkpoint_changes

SECONDS = 90


@pytest.mark.slow
def test_run__ends_in_its_time_where_a_load_comes_and_goes(tmp_path):
    words = ["train", "--time", f"{SECONDS}s", "--init", "none", "--model", "vit_mini", "--device", "cpu"]
    code = "import sys; sys.argv[0] = 'paucal'; from paucal.cli.main import main; sys.exit(main())"
    names = ("OMP_NUM_THREADS", "PYTEST_XDIST_WORKER")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    begin = time.monotonic()
    command = [sys.executable, "-c", code, *words, "--output", str(tmp_path / "run")]
    run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    others = []
    try:
        time.sleep(SECONDS / 3)
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count_usable_cores())]
        time.sleep(SECONDS / 3)
    finally:
        for other in others:
            other.kill()
            other.wait()
    _, said = run.communicate(timeout=10 * SECONDS)
    took = time.monotonic() - begin
    assert run.returncode == 0, said
    changes = checkpoint_changes(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert 0.8 * SECONDS <= took <= 1.1 * SECONDS, changes
    assert changes
