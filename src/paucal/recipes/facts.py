"""What the automatic settings look at."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Facts:
    """Plain numbers about the data and the machine.

    Attributes:
        n_train: training images.
        n_classes: classes.
        median_side: median of the shorter sides in pixels.
        hinted_size: side in pixels that the source recommends, or None.
        hinted_epochs: passes that the source recommends, or None.
        flip: whether a mirrored image means the same.
        cores: processor cores.
        device: "cuda", "mps" or "cpu": the best there is.
        bf16: whether that device computes in bfloat16 natively.
    """

    n_train: int
    n_classes: int
    median_side: int
    hinted_size: int | None = None
    hinted_epochs: int | None = None
    flip: bool = True
    cores: int = 1
    device: str = "cpu"
    bf16: bool = False


def best_device() -> tuple[str, bool]:
    """Return the best device of this machine and whether it has native bfloat16."""
    if torch.cuda.is_available():
        return "cuda", torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.mps.is_available():
        return "mps", False
    return "cpu", False
