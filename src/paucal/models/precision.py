"""Chooses bfloat16 on a CPU, if measurements show that bfloat16 is faster and gives the same predictions.

Some CPUs multiply bfloat16 numbers several times as fast as float32 numbers, and others have no instructions for
bfloat16. In some networks, the conversions take more time than is saved. Therefore, forward passes in both precisions
are timed alternately on a few images.
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
from paucal.wording import counted
from paucal.writing import write_text

# bfloat16 is chosen only if all these conditions hold.
MIN_SPEEDUP = 1.3  # time with float32, divided by time with bfloat16
MIN_COSINE = 0.999  # cosine similarity between the outputs with float32 and the outputs with bfloat16
MIN_TOTAL_SECONDS = 10.0  # time of the forward passes for all images with float32
MIN_IMAGE_SECONDS = 0.005  # time of a forward pass per image with float32
# The speed is measured on at most `MEASURED_IMAGES` images in at most `MAX_ROUNDS` rounds; no round begins after
# `MAX_SECONDS`.
MEASURED_IMAGES, MAX_ROUNDS, MAX_SECONDS = 8, 3, 1.5
# Names of instruction sets for bfloat16 in /proc/cpuinfo.
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16", "svebf16")
_CPUINFO = Path("/proc/cpuinfo")

ForwardPass = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PrecisionChoice:
    """The precision of forward passes."""

    dtype: torch.dtype | None = None  # `torch.bfloat16` for autocast; None for no autocast
    reason: str = "float32"  # reason for the choice, for messages
    speed: float = 1.0  # speed relative to float32
    measured: bool = False  # whether the choice is based on measurements

    @property
    def precision(self) -> str:
        """The value of `--precision` for this choice."""
        return "32-true" if self.dtype is None else "bf16-mixed"


FLOAT32 = PrecisionChoice()
EXPLICIT_CHOICES = {
    "32-true": PrecisionChoice(None, "float32, as given"),
    "bf16-mixed": PrecisionChoice(torch.bfloat16, "as given"),
}


def bfloat16_flags() -> tuple[str, ...]:
    """Return the names of this CPU's bfloat16 instruction sets; empty if the CPU has none or they are unknown."""
    cpu_flags = {word for line in _cpu_lines() if line.startswith(("flags", "Features")) for word in line.split()}
    return tuple(flag for flag in BFLOAT16_FLAGS if flag in cpu_flags)


def cpu_name() -> str:
    """Return the name of this CPU; on ARM, the CPU's part number."""
    name_lines = (line for line in _cpu_lines() if line.startswith(("model name", "CPU part")))
    return next((line.partition(":")[2].strip() for line in name_lines), platform.processor())


def _cpu_lines() -> list[str]:
    try:
        return _CPUINFO.read_text().splitlines()
    except OSError:  # macOS and Windows
        return []


def choose_precision(
    forward: ForwardPass, images: Tensor, key: str, count: int | None = None, has_logits: bool = True
) -> PrecisionChoice:
    """Choose bfloat16 if it is at least 1.3 times as fast as float32 on this CPU, and gives nearly the same outputs.

    `forward` computes (B, D) logits or, if not `has_logits`, features from (B, C, H, W) images. Only the first 8 of
    the `images` (N, C, H, W) are used. The measured speed is cached under the name `key` of the architecture. `count`
    is the total number of images to process with the chosen precision; None if unknown.
    """
    flags = bfloat16_flags()
    if images.device.type != "cpu":
        return FLOAT32
    if not flags:
        return PrecisionChoice(None, "float32: this CPU has no instructions for bfloat16")
    images = images[:MEASURED_IMAGES]
    with torch.inference_mode():
        exact, seconds = _time_run(forward, images, None)
        image_seconds = seconds / len(images)
        if image_seconds < MIN_IMAGE_SECONDS or (count is not None and image_seconds * count < MIN_TOTAL_SECONDS):
            return PrecisionChoice(None, "float32: bfloat16 would save too little time")
        rounded_outputs = _time_run(forward, images, torch.bfloat16)[0]
        return decide_precision(measure_speed(forward, images, key), exact, rounded_outputs, has_logits)


def measure_speed(run: ForwardPass, images: Tensor, key: str) -> float:
    """Return the speed of bfloat16 relative to float32.

    The speed is measured once for each CPU, network and image size, and then read from the cache folder.
    """
    size = "x".join(map(str, images.shape[1:]))
    machine = f"{cpu_name()} {platform.machine()} {' '.join(bfloat16_flags())}, {torch.get_num_threads()} threads"
    name = f"{key}, {size}, torch {torch.__version__}, {machine}"
    file, speeds = features_folder().with_name("arithmetic.json"), {}
    with suppress(OSError, ValueError, TypeError, AttributeError):  # missing or damaged: measure again
        speeds = {str(stored_name): float(ratio) for stored_name, ratio in json.loads(file.read_text()).items()}
    if name in speeds:
        return speeds[name]
    ratios: list[float] = []
    total_seconds = 0.0
    while len(ratios) < MAX_ROUNDS and (not ratios or total_seconds < MAX_SECONDS):
        exact_seconds, rounded_seconds = _time_run(run, images, None)[1], _time_run(run, images, torch.bfloat16)[1]
        ratios.append(exact_seconds / rounded_seconds)
        total_seconds += exact_seconds + rounded_seconds
    ratio = statistics.median(ratios)
    with suppress(OSError):  # the cache cannot be written: measure again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({**speeds, name: round(ratio, 2)}, indent=1) + "\n")
    return ratio


def decide_precision(speed: float, exact: Tensor, rounded: Tensor, classes: bool = True) -> PrecisionChoice:
    """Choose the precision from a measurement: the relative speed of bfloat16, and (B, D) outputs in both precisions.

    If the outputs are logits (`classes`), the predicted classes must be equal.
    """
    if speed < MIN_SPEEDUP:
        reason = f"float32: bfloat16 is {speed:.1f} times as fast here, expected at least {MIN_SPEEDUP}"
        return PrecisionChoice(None, reason, measured=True)
    cosine = float(F.cosine_similarity(exact.float(), rounded.float()).min())
    if not cosine >= MIN_COSINE:
        return PrecisionChoice(
            None, f"float32: the outputs with bfloat16 differ (cosine similarity {cosine:.4f})", measured=True
        )
    if classes and not torch.equal(exact.argmax(1), rounded.argmax(1)):
        return PrecisionChoice(None, "float32: bfloat16 changes the predicted class of some images", measured=True)
    agreement = "the same classes" if classes else "nearly the same outputs"
    tested = counted(len(exact), "tested image")
    reason = f"bfloat16: {speed:.1f} times as fast as float32 here, with {agreement} for {tested}"
    return PrecisionChoice(torch.bfloat16, reason, speed, measured=True)


def _time_run(run: ForwardPass, images: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, float]:
    """Return the outputs for images, computed under autocast if `dtype` is not None, and the time in seconds."""
    start_time = time.perf_counter()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        outputs = run(images)
    return outputs, time.perf_counter() - start_time
