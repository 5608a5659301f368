"""Counts the pages that the system has to clear for memory that is freed and taken again, as a program of its own.

Writes into a file what it has found, once as it is and once where a variable is set by which users configure glibc.
"""

import os
import sys
from pathlib import Path

import torch

from paucal.memory import keep_freed_memory

BLOCK = 64 << 20  # bytes; of smaller blocks glibc keeps some by itself
TIMES = 3


def faults(times: int = TIMES) -> int:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(BLOCK // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(path: Path, variable: str) -> None:
    torch.set_num_threads(1)
    faults(1)
    os.environ[variable] = "131072"
    with keep_freed_memory():
        set_by_user = faults()
    del os.environ[variable]
    plain, before = faults(), held()
    with keep_freed_memory():
        first = faults(1)
        with keep_freed_memory():
            pass
        kept = faults()
    more, after = held() - before, faults()
    path.write_text(f"{plain} {first} {kept} {more} {after} {set_by_user}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
