"""bfloat16 on a CPU, if measurements show that it is faster and gives the same predictions.

Some CPUs multiply bfloat16 numbers several times as fast as float32 ones, some have no instructions for them, and for
some networks the conversions cost more than is gained. So a few images are run alternately in both.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.data.decoded.cache_folder import features_folder
from paucal.runs import write_text

FASTER = 1.3  # smallest speed of bfloat16, as a multiple of float32's
COSINE = 0.999  # smallest cosine between the outputs
WORTH = 10.0  # seconds of total work in float32 below which nothing is changed
QUICK = 0.005  # seconds per image in float32 below which nothing is changed
IMAGES, ROUNDS = 8, 3  # images and rounds per measurement
MAX_SECONDS = 1.5  # seconds after which no further round begins
FLAGS = ("amx_bf16", "avx512_bf16", "bf16", "svebf16")
_CPUINFO = Path("/proc/cpuinfo")

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PrecisionChoice:
    """The precision of forward passes.

    Attributes:
        dtype: `torch.bfloat16` for autocast; None for the precision of the weights.
        reason: Reason, as part of a sentence.
        speed: Speed as a multiple of float32's.
        measured: Whether it was chosen by measurements.
    """

    dtype: torch.dtype | None = None
    reason: str = "float32"
    speed: float = 1.0
    measured: bool = False

    @property
    def precision(self) -> str:
        """The corresponding value of `--precision`."""
        return "32-true" if self.dtype is None else "bf16-mixed"


FLOAT32 = PrecisionChoice()
GIVEN = {
    "32-true": PrecisionChoice(None, "float32, as given"),
    "bf16-mixed": PrecisionChoice(torch.bfloat16, "as given"),
}


def bfloat16_flags() -> tuple[str, ...]:
    """Return the names of this CPU's instructions for bfloat16; empty if none are known."""
    cpu_flags = {word for line in _cpu_lines() if line.startswith(("flags", "Features")) for word in line.split()}
    return tuple(flag for flag in FLAGS if flag in cpu_flags)


def cpu_name() -> str:
    """Return the name of this CPU, or on ARM the number of its design."""
    name_lines = (line for line in _cpu_lines() if line.startswith(("model name", "CPU part")))
    return next((line.partition(":")[2].strip() for line in name_lines), platform.processor())


def _cpu_lines() -> list[str]:
    try:
        return _CPUINFO.read_text().splitlines()
    except OSError:  # macOS and Windows
        return []


def choose_precision(
    run: Run, images: Tensor, key: str, count: int | None = None, classes: bool = True
) -> PrecisionChoice:
    """Return bfloat16 if it is at least 1.3 times as fast here, with nearly the same outputs and the same classes.

    Args:
        run: Function from (B, C, H, W) images to (B, D) logits or features.
        images: A few images as inputs of the network.
        key: Name of the architecture, under which the speed is remembered.
        count: Total number of images; None if unknown.
        classes: Whether the outputs are scores of classes, not features.
    """
    flags = bfloat16_flags()
    if images.device.type != "cpu":
        return FLOAT32
    if not flags:
        return PrecisionChoice(None, "float32: this CPU has no instructions for bfloat16")
    images = images[:IMAGES]
    with torch.inference_mode():
        exact, seconds = _time_run(run, images, None)
        image_seconds = seconds / len(images)
        if image_seconds < QUICK or (count is not None and image_seconds * count < WORTH):
            return PrecisionChoice(None, "float32: there is too little to gain")
        rounded_outputs = _time_run(run, images, torch.bfloat16)[0]
        return decide_precision(measure_speed(run, images, key), exact, rounded_outputs, classes)


def measure_speed(run: Run, images: Tensor, key: str) -> float:
    """Return the speed of bfloat16 as a multiple of float32's, measured once for each machine, network and image size.

    The cache folder keeps it for later calls.
    """
    size = "x".join(map(str, images.shape[1:]))
    machine = f"{cpu_name()} {platform.machine()} {' '.join(bfloat16_flags())}, {torch.get_num_threads()} threads"
    name = f"{key}, {size}, torch {torch.__version__}, {machine}"
    file, speeds = features_folder().with_name("arithmetic.json"), {}
    with suppress(OSError, ValueError, TypeError, AttributeError):  # missing or damaged: measure again
        speeds = {str(measured): float(ratio) for measured, ratio in json.loads(file.read_text()).items()}
    if name in speeds:
        return speeds[name]
    ratio = _median_speedup(run, images)
    with suppress(OSError):  # not stored: measured again in the next call
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({**speeds, name: round(ratio, 2)}, indent=1) + "\n")
    return ratio


def decide_precision(speed: float, exact: Tensor, near: Tensor, classes: bool = True) -> PrecisionChoice:
    """Return the precision for a speed, as a multiple of float32's, and the (B, D) outputs of both."""
    if speed < FASTER:
        reason = f"float32: bfloat16 is {speed:.1f} times as fast here, less than {FASTER}"
        return PrecisionChoice(None, reason, measured=True)
    cosine = float(F.cosine_similarity(exact.float(), near.float()).min())
    if not cosine >= COSINE:
        return PrecisionChoice(None, f"float32: the outputs of bfloat16 differ (cosine {cosine:.4f})", measured=True)
    if classes and not torch.equal(exact.argmax(1), near.argmax(1)):
        return PrecisionChoice(None, "float32: bfloat16 gives some images another class", measured=True)
    reason = f"bfloat16: {speed:.1f} times as fast as float32 here, with the same predictions"
    return PrecisionChoice(torch.bfloat16, reason, speed, measured=True)


def _time_run(run: Run, images: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, float]:
    start_time = time.perf_counter()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        outputs = run(images)
    return outputs, time.perf_counter() - start_time


def _median_speedup(run: Run, images: Tensor) -> float:
    """Return the median speed of bfloat16 relative to float32, over alternating rounds."""
    ratios: list[float] = []
    total_seconds = 0.0
    while len(ratios) < ROUNDS and (not ratios or total_seconds < MAX_SECONDS):
        exact_seconds, rounded_seconds = _time_run(run, images, None)[1], _time_run(run, images, torch.bfloat16)[1]
        ratios.append(exact_seconds / rounded_seconds)
        total_seconds += exact_seconds + rounded_seconds
    return statistics.median(ratios)
