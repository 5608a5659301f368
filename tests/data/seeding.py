"""Draws that a test can repeat."""

from collections.abc import Iterator
from contextlib import contextmanager

from paucal.data.randomness import preserve_generators, reseed


@contextmanager
def seeded(*parts: int) -> Iterator[None]:
    """Seed what transforms draw from, as the data set does before each image; restore it afterwards."""
    with preserve_generators():
        reseed(*parts)
        yield
