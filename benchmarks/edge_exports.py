"""What exported files cost: difference, agreement, size and time of every format, compared with the model.

    python benchmarks/edge_exports.py lite0=runs/1 segmenter=runs/2 --formats onnx openvino html
    python benchmarks/edge_exports.py lite0=runs/1 --formats litert          # in an environment with the extra litert

Each run is exported by `paucal.export_model` with `--int8` where the format can, and compared on up to 200 of its own
test images, one at a time and in turn with the model, on one thread; times are of the processor, so that other programs
on the machine do not count. Results are added to those stored before, so that formats whose packages exclude each other
are measured one after the other. A format that a run cannot be written in is stored with the reason. The page `html`
needs `--onnxruntime-web`, as in `paucal export`.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import paucal
from measuring import store, surroundings
from paucal.export.formats import GRAPHS
from paucal.models.tasks import DETECTION, task_of
from paucal.verbs.export import launch

STORED = Path(__file__).with_name("results") / "edge_exports.json"


def measure(run: str, name: str, images: int, web: str | None, data: str | None) -> dict[str, Any]:
    """Return the comparison of each file of a format, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = paucal.export_model(
                run,
                output=str(Path(folder) / "out"),
                format=[name],
                int8=GRAPHS[name].quantise is not None and task_of(run) != DETECTION,
                images=images,
                data=data,
                onnxruntime_web=web,
            )
        except paucal.UserError as problem:
            return {name: {"refused": str(problem)}}
    rows = {file: asdict(found) for file, found in made.comparisons.items()}
    for row in rows.values():
        own, other = row.pop("milliseconds")
        row["time_to_model"] = round(other / own, 3)
    return rows or {name: {"not_run": made.said[-2]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="runs of paucal train, detect and segment")
    parser.add_argument("--formats", nargs="+", choices=[*GRAPHS], default=["onnx", "openvino"])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--data", help="images to compare on, where a run has fewer test images")
    parser.add_argument("--onnxruntime-web")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    launch.GraphWriter = partial(launch.GraphWriter, clock=time.process_time)  # type: ignore[misc,assignment]
    models = json.loads(STORED.read_text())["models"] if STORED.is_file() else {}
    for name, _, run in (each.partition("=") for each in arguments.runs):
        for kind in arguments.formats:
            rows = measure(run, kind, arguments.images, arguments.onnxruntime_web, arguments.data)
            models.setdefault(name, {}).update(rows)
            store(STORED.stem, {"surroundings": surroundings("cpu"), "models": models})


if __name__ == "__main__":
    main()
