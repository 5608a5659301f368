"""Do initial weights help a detector or segmenter of few images? The same network from several starts, paired by seed.

    python benchmarks/starts.py detect BCCD --name starts_bccd --work W --labelled CLOTHING -- --steps 300
    python benchmarks/starts.py segment MEMBRANE --name starts_membrane --work W --labelled CLOTHING -- --epochs 30

What follows `--` goes to every run of `paucal detect` or `paucal segment`. The arms begin with random weights, with the
published weights of the extra `weights`, with EsViT's of the training images alone, and with those of a classifier that
learnt other labelled images with DrLoc from scratch; "cascade" is the detector of three heads from published weights.
Each seed has its own pre-training and, where the data has no parts, its own split. Finished runs are not repeated.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from measuring import store, surroundings

SCORES = {"detect": ("ap", "ap50"), "segment": ("mean_iou",)}
ARMS = ("random", "trained", "esvit", "drloc", "cascade")


def main() -> None:
    """Run what is missing, and store scores with the seconds they took."""
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options, flags = read(arguments[:cut]), arguments[cut + 1 :]
    rows = []
    for seed in options.seeds:
        for arm in options.arms:
            rows.append({"arm": arm, "seed": seed} | row(options, arm, seed, flags))
            print(rows[-1], flush=True)
    told = {name: value for name, value in vars(options).items() if name not in ("work", "data", "labelled", "name")}
    facts = {"data": options.data.name, "settings": told, "flags": flags}
    store(options.name, {"arms": summary(rows, options), "runs": rows} | facts | {"surroundings": surroundings("cpu")})


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=SCORES)
    parser.add_argument("data", type=Path)
    parser.add_argument("--name", required=True, help="of the stored result")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--labelled", type=Path, help="images with labels for the start with DrLoc")
    parser.add_argument("--model", default="tf_efficientnet_lite0.in1k")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS[:4]))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--esvit-epochs", type=int, default=40)
    parser.add_argument("--drloc-epochs", type=int, default=6)
    parser.add_argument("--start-size", type=int, default=128, help="side of the images that a start is made with")
    options = parser.parse_args(arguments)
    if "esvit" in options.arms and "random" not in options.arms:
        parser.error("esvit begins with the training images of the random arm: name both in --arms.")
    if "drloc" in options.arms and options.labelled is None:
        parser.error("drloc begins with other labelled images: give --labelled.")
    return options


def row(options: argparse.Namespace, arm: str, seed: int, flags: Sequence[str]) -> dict[str, Any]:
    """Return what an arm has reached with a seed, trained if missing."""
    output = run_for_cell(options, arm, seed)
    common = ["--seed", str(seed), "--device", "cpu", *flags]
    finish(output, [options.task, str(options.data), "--model", options.model, *start(options, arm, seed), *common])
    summary = json.loads((output / "summary.json").read_text())
    if options.task == "detect":
        judged = json.loads((output / "evaluation/detection/metrics.json").read_text())["intervals"]
    else:
        judged = json.loads((output / "evaluation/test/segmentation.json").read_text())
    scores = {name: judged[name]["value"] for name in SCORES[options.task]}
    length = {name: summary[name] for name in ("steps", "epochs") if name in summary}
    return scores | {"seconds": summary["seconds"]} | length


def start(options: argparse.Namespace, arm: str, seed: int) -> list[str]:
    """Return the flags of an arm, having made the run that it begins with."""
    if arm in ("trained", "cascade"):
        return ["--init", "auto", *(["--cascade"] if arm == "cascade" else [])]
    if arm == "random":
        return ["--init", "none"]
    made = options.work / f"start-{arm}-{seed}"
    common = ["--model", options.model, "--img-size", str(options.start_size), "--seed", str(seed), "--device", "cpu"]
    if arm == "esvit":
        made = options.work / f"start-esvit-{options.data.name}-{seed}"
        images = training_images(options, seed)
        finish(made, ["pretrain", str(images), "--init", "none", "--epochs", str(options.esvit_epochs), *common])
    else:
        method = ["--method", "drloc", "--init", "none", "--epochs", str(options.drloc_epochs)]
        finish(made, ["train", str(options.labelled), *method, *common])
    return ["--init", str(made)]


def training_images(options: argparse.Namespace, seed: int) -> Path:
    """Return a folder of links to the images that the random start of this seed trains on."""
    folder = options.work / f"images-{options.data.name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with (run_for_cell(options, "random", seed) / "split.csv").open() as file:
        parts = {line["key"]: line["split"] for line in csv.DictReader(file)}
    for path in (path for path, part in parts.items() if part == "train"):
        (found,) = {one.resolve() for one in options.data.rglob(Path(path).name) if one.match(f"*{path}")}
        link = folder / Path(path).name
        if not link.is_symlink():
            link.symlink_to(found)
    return folder


def run_for_cell(options: argparse.Namespace, arm: str, seed: int) -> Path:
    """Return the folder of an arm's run."""
    return options.work / f"{options.name}-{arm}-{seed}"


def finish(output: Path, command: Sequence[str]) -> None:
    """Run a command of paucal until its run is finished; a stopped run is resumed."""
    if (output / "summary.json").exists():
        return
    begun = (output / "checkpoints").is_dir()
    words = [command[0], "--resume", str(output)] if begun else [*command, "--output", str(output)]
    program = Path(sys.executable).with_name("paucal")
    subprocess.run([str(program), *words], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def summary(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return mean and lowest and highest score of each arm, and its gain over random weights, paired by seed."""
    lines = []
    for arm in options.arms:
        mine = {row["seed"]: row for row in rows if row["arm"] == arm}
        base = {row["seed"]: row for row in rows if row["arm"] == "random"}
        line: dict[str, Any] = {"arm": arm, "seeds": len(mine)}
        for name in SCORES[options.task]:
            values = [row[name] for row in mine.values()]
            line[name] = {"mean": round(float(np.mean(values)), 4), "low": min(values), "high": max(values)}
            if base and arm != "random":
                gains = [mine[seed][name] - base[seed][name] for seed in mine]
                line[f"{name}_gains"] = [round(gain, 4) for gain in gains]
        lines.append(line)
    return lines


if __name__ == "__main__":
    main()
