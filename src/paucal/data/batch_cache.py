"""Prepared images that are needed again and again."""

from collections.abc import Callable, Iterable, Iterator

from paucal.types import Batch

MOST_BYTES = 512 << 20


class KeptBatches:
    """Batches that are the same in every pass: read once and kept, where they take at most 512 MiB.

    Args:
        make: returns the batches, read by that many loader processes; called in the first pass, since the processes
            that train together are joined only then.
        n_bytes: what all of them take.
        workers: loader processes. Kept batches are read without any where a processor trains: processes that start
            beside a training one share its memory until it writes there, and the steps that follow take longer
            (`benchmarks/training.py --workers 2`: 1.2 times as long for an epoch).
        device: what trains, "cpu" or an accelerator.

    Example:
        >>> made = []
        >>> batches = KeptBatches(lambda workers: made.append(workers) or [1, 2], n_bytes=8, workers=3, device="cpu")
        >>> list(batches), list(batches), made
        ([1, 2], [1, 2], [0])
    """

    def __init__(self, make: Callable[[int], Iterable[Batch]], n_bytes: int, workers: int, device: str) -> None:
        self._make, self._keep = make, n_bytes <= MOST_BYTES
        self._workers = 0 if self._keep and device == "cpu" else workers
        self._batches: Iterable[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Pass over the batches."""
        if self._batches is None:
            batches = self._make(self._workers)
            self._batches = list(batches) if self._keep else batches
        return iter(self._batches)
