"""A command of paucal whose clock is the processor time of its process.

    OMP_NUM_THREADS=1 python benchmarks/processor_time.py train PHOTOS --time 5m --workers 0

A run that is given a time then does the same work however many other programs share the machine, so that runs can be
compared "in the same time" on a busy one. Loaders must work in the process itself (`--workers 0`).
"""

import os
import subprocess
import sys
import time


def run_command(words: list[str], sources: str | None = None) -> None:
    """Run a command of paucal in such a process on one thread, of another tree of sources where one is named.

    Raises:
        CalledProcessError: The command ended with another exit code than 0.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": sources} if sources else {})
    command = [sys.executable, __file__, *words, "--device", "cpu", "--workers", "0"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    time.monotonic = time.perf_counter = time.process_time
    from paucal.cli.main import main

    sys.exit(main(sys.argv[1:]))
