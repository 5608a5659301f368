"""How soon a detector is usable, and how good it is at the end, with and without training its heads first.

    python benchmarks/detection_start.py BCCD --work W --name detection_start_bccd --minutes 10 --seeds 0
    python benchmarks/detection_start.py CHESS --work W --name detection_start_chess --minutes 5 10 20 --seeds 0 1

"joint" trains the backbone from the first step (`--heads-steps 0`), "heads-first" as `paucal detect --time` does by
default. The clock of each run is the processor time of its process, on one thread, so that other programs on the
machine do not change what fits in the minutes. Finished runs are not repeated; `--arms` makes one arm at a time.
Stored are the AP on the validation images over the minutes, the minute of the first detector with an AP50 of half its
last value or more, and the AP on the test images.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measuring import store, surroundings
from processor_time import run_command

ARMS = {"joint": ["--heads-steps", "0"], "heads-first": []}
USABLE = 0.5  # share of the last AP50 on the validation images


def main() -> None:
    """Run what is missing, and store the scores over the minutes."""
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options, flags = read(arguments[:cut]), arguments[cut + 1 :]
    rows = []
    for minutes in options.minutes:
        for seed in options.seeds:
            for arm in options.arms:
                rows.append({"arm": arm, "minutes": minutes, "seed": seed, **row(options, arm, minutes, seed, flags)})
                print(json.dumps(rows[-1]), flush=True)
    facts = {"data": options.data.name, "flags": flags, "clock": "processor time of one thread"}
    store(options.name, {"runs": rows, **facts, "surroundings": surroundings("cpu")})


def read(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--name", required=True, help="of the stored result")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", nargs="+", type=float, default=[5, 10, 20])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    return parser.parse_args(arguments)


def row(options: argparse.Namespace, arm: str, minutes: float, seed: int, flags: list[str]) -> dict[str, Any]:
    """Return what an arm reached, trained if missing."""
    run = options.work / f"{options.name}-{arm}-{minutes:g}m-{seed}"
    if not (run / "summary.json").exists():
        length = ["--time", f"{round(60 * minutes)}s", "--seed", str(seed)]
        words = ["detect", str(options.data), *length, *ARMS[arm], *flags, "--output", str(run), "--overwrite"]
        words = ["detect", "--resume", str(run)] if (run / "config.yaml").exists() else words
        run_command(words)
    summary = json.loads((run / "summary.json").read_text())
    first, plan = summary.get("first_detector"), json.loads((run / "time_plan.json").read_text())
    lines = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    rows = [dict(zip(lines[0], map(float, line), strict=True)) for line in lines[1:]]
    curve = [((plan["spent"] + each["seconds"]) / 60, each["val_ap"], each["val_ap50"]) for each in rows]
    if first is not None:
        curve.insert(0, (first["seconds"] / 60, first["score"], first["ap50"]))
    least = USABLE * curve[-1][2]
    return {
        "test_ap": summary["test_ap"],
        "test_ap50": summary["test_ap50"],
        "best_val_ap": summary["best_val_ap"],
        "steps": summary["steps"],
        "heads_steps": first["steps"] if first else 0,
        "usable_after_minutes": next((round(minute, 2) for minute, _, ap50 in curve if ap50 >= least), None),
        "curve": [[round(value, 3) for value in point] for point in curve],
    }


if __name__ == "__main__":
    main()
