"""Seeds derived from integers such as (seed, epoch, image).

No state of a global random generator is kept during a run. All random values are functions of such integers, so they
stay the same if a run is resumed or the number of workers changes.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_SEED_BITS = 63  # a seed fits into a signed 64-bit integer


def derive_seed(*numbers: int) -> int:
    """Mix integers, whose order matters, into one seed in [0, 2**63), the same on every machine and Python version."""
    text = ",".join(str(int(number)) for number in numbers)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def reseed(*numbers: int) -> None:
    """Seed Python's, NumPy's legacy and torch's CPU generator from integers; takes about 10 microseconds."""
    seed = derive_seed(*numbers)
    random.seed(seed)  # timm's augmentations draw from Python's and NumPy's generators, and torchvision's from torch's
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Save the generators that `reseed` seeds, and restore them after the block; takes about 120 microseconds."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.default_generator.set_state(torch_state)
