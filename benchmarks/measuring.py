"""Times that are compared within one run, and results with the device and the versions they belong to."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def synchronize(device: str) -> None:
    """Wait until the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def interleaved(steps: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, list[float]]:
    """Return seconds per call of each step; the steps take turns, so that drift of the machine hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            synchronize(device)
            begin = time.perf_counter()
            step()
            synchronize(device)
            if repeat:  # the first round warms up
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def ratio(seconds: Mapping[str, list[float]], of: str, to: str) -> dict[str, float]:
    """Return the median and the quartiles of the ratios of paired calls."""
    ratios = [a / b for a, b in zip(seconds[of], seconds[to], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {"median": median, "lower_quartile": low, "upper_quartile": high, "pairs": len(ratios)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the quartiles and the number of some values."""
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {"median": median, "lower_quartile": low, "upper_quartile": high, "count": len(values)}


def percent_right(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the percentage of rows whose largest of (N, K) scores is that of their label."""
    return 100 * float((scores.argmax(1) == labels).double().mean())


def peak_memory(step: Callable[[], object], device: str) -> float | None:
    """Return the MiB that a GPU holds at most during a call; None elsewhere, where that is not known."""
    if device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return round(torch.cuda.max_memory_allocated() / 2**20, 1)


def surroundings(device: str) -> dict[str, Any]:
    """Return the device and the versions that a result belongs to."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "timm", "lightning", "paucal")},
    }


def store(name: str, result: Mapping[str, Any]) -> None:
    """Print a result and write it beside the scripts."""
    text = json.dumps(result, indent=1)
    print(text)
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n")
