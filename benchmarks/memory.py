"""What it costs a CPU to allocate memory again: answers and steps, with freed memory kept and given back.

    python benchmarks/memory.py --repeats 7

Rows are models, columns batches; times are milliseconds an image with glibc's usual settings and within
`keep_freed_memory`, in turns, and the ratio of paired calls. What `paucal` gives a network at a time is marked.
"""

import argparse
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import timm
import torch

import paucal  # noqa: F401, for its models
from measuring import interleaved, ratio, store, surroundings
from paucal.data.loader import inference_batch_size
from paucal.memory import keep_freed_memory

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "tf_efficientnet_lite0": (224, {}),
    "resnet18": (224, {}),
    "swin_tiny_patch4_window7_224": (224, {}),
    "resnet10t": (64, {}),
    "dhvt_mini": (32, {"img_size": 32}),
}
WAYS = {"usual": nullcontext, "kept": keep_freed_memory}


def main() -> None:
    """Measure all models, and store the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = [row for name in options.models for row in rows_of(name, options.repeats)]
    facts = {"threads_asked": os.environ.get("OMP_NUM_THREADS"), "surroundings": surroundings("cpu")}
    store("memory_cpu", {"rows": rows} | facts)


def rows_of(name: str, repeats: int) -> list[dict[str, Any]]:
    """Return times of answers for several batches, and of training steps."""
    side, arguments = MODELS[name]
    model = timm.create_model(name, num_classes=10, **arguments)
    chosen = inference_batch_size((side, side), "cpu")
    rows = []
    for batch in sorted({16, 64, chosen} | ({256} if side < 100 else set())):
        seconds = interleaved(answers(model, batch, side), repeats, "cpu")
        rows.append(row(name, "answer", batch, seconds) | {"chosen": batch == chosen})
    rows.append(row(name, "step", 16, interleaved(steps(model, 16, side), repeats, "cpu")))
    return rows


def answers(model: torch.nn.Module, batch: int, side: int) -> dict[str, Callable[[], object]]:
    """Return functions that answer for a batch, by the way memory is kept."""
    images = torch.randn(batch, 3, side, side)

    def answer(way: Callable[[], Any]) -> None:
        model.eval()
        with way(), torch.inference_mode():
            model(images)
            model(images)  # what is kept is kept from one batch to the next

    return {name: lambda way=way: answer(way) for name, way in WAYS.items()}


def steps(model: torch.nn.Module, batch: int, side: int) -> dict[str, Callable[[], object]]:
    """Return functions that learn from a batch twice."""
    images = torch.randn(batch, 3, side, side)

    def step(way: Callable[[], Any]) -> None:
        model.train()
        with way():
            for _ in range(2):
                model(images).square().mean().backward()
                model.zero_grad()

    return {name: lambda way=way: step(way) for name, way in WAYS.items()}


def row(name: str, what: str, batch: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return a row: milliseconds an image, and the ratio of kept to usual."""
    each = {way: round(sorted(times)[len(times) // 2] / batch / 2 * 1000, 2) for way, times in seconds.items()}
    return {"model": name, "what": what, "batch": batch, "ms_an_image": each, "ratio": ratio(seconds, "kept", "usual")}


if __name__ == "__main__":
    main()
