"""What the order of a pass costs each process of a run, from a hundred thousand to ten million images.

Each number of images is measured in a process of its own; docs/lab extrapolates to a billion.

    python benchmarks/scale_limits.py --counts 100000 1000000 10000000
"""

import argparse
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from paucal.data.sampler import StepSampler
from paucal.data.shards.stream import Stream, window_size

SHARD = 10_000  # images
BATCH = 128


def first_step(count: int) -> tuple[float, float]:
    """Return the seconds of processor time and the MiB until the first step of a pass over small images."""
    numbers = np.arange(count, dtype=np.int64)
    stream = Stream.from_shards([SHARD] * (count // SHARD), window_size(2000))
    before, begin = memory(), time.process_time()
    next(iter(StepSampler(numbers, BATCH, count // BATCH, seed=0, stream=stream)))
    return time.process_time() - begin, memory() - before


def memory() -> float:
    """Return the largest resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure, and print a line for each number of images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", type=int, nargs="+", default=[100_000, 1_000_000])
    for count in parser.parse_args().counts:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            seconds, used = pool.submit(first_step, count).result()
        print(f"{count:>12,} images: {seconds:.3f} s, {used:.0f} MiB, {used * 2**20 / count:.0f} bytes an image")


if __name__ == "__main__":
    main()
