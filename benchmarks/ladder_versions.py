"""`paucal train` of several versions of the program in the same time, on the same images, paired by seed.

    git worktree add --detach ../before 4ecea24
    python benchmarks/ladder_versions.py CLOTHING --trees before=../before/src now=src --name clothing_800_5m \
        --work /tmp/versions --images 800 --time 5m --seeds 0 1

Each run is `paucal train IMAGES --time T --seed S` in a process of its own that imports the sources of one tree and
whose clock is its processor time on one thread (`processor_time.py`), so that other programs change little. Each model
is evaluated on the test images, and by `paucal.evaluate` of this tree on the labelled images that no run has seen:
those of the training part that were not drawn, and the validation part. Finished runs are kept in --work. A tree whose
sources need further packages gets their folder after a colon (`before=../before/src:../packages`).
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import paucal
from esvit_gain import export
from measuring import store, surroundings
from paucal.data.sources.opening import open_images
from processor_time import run_command


def export_unseen(source: str, folder: Path, train: int, most: int) -> None:
    """Write the labelled images that `export` left out as class folders; do nothing if they exist."""
    if (folder / "done").exists():
        return
    images = open_images(source)
    declared = np.asarray(images.declared_splits)
    unseen = np.random.default_rng(0).permutation(np.flatnonzero(declared == "train"))[train:]
    for row in [*np.flatnonzero(declared == "val"), *unseen][:most]:
        target = folder / images.classes[images.labels[row]] / f"{row}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        images.store.read(int(row)).save(target)
    (folder / "done").touch()


def run_tree(sources: str, data: Path, unseen: Path, run: Path, settings: list[str]) -> dict[str, Any]:
    """Return what a run of one tree reached, made if missing."""
    kept = run.with_suffix(".json")
    if not kept.exists():
        words = ["train", str(data), *settings, "--output", str(run), *(["--overwrite"] if run.exists() else [])]
        run_command(words, sources)
        summary = json.loads((run / "summary.json").read_text())
        others = paucal.evaluate(str(run), str(unseen), device="cpu", output=str(run / "unseen"))
        steps = [(step["name"], step["score"], step["time"], step["kept"]) for step in summary["rungs"]]
        facts = {"epochs": summary["epochs"], "kept": summary["kept"], "seconds": summary["seconds"], "steps": steps}
        found = {"test": summary["test_top1"], "unseen": others.metrics["top1"], **facts}
        kept.write_text(json.dumps(found))
    return json.loads(kept.read_text())


def summarised(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Return mean accuracies of each tree in %, and the paired differences to the first tree in points."""
    lines = []
    for name in names:
        line: dict[str, Any] = {"tree": name}
        for score in ("test", "unseen"):
            by_seed = {row["seed"]: 100 * row[score] for row in rows if row["tree"] == name}
            first = {row["seed"]: 100 * row[score] for row in rows if row["tree"] == names[0]}
            gains = [by_seed[seed] - first[seed] for seed in by_seed if seed in first]
            line |= {score: statistics.mean(by_seed.values()), f"{score}_gains": gains}
        lines.append(line)
    return lines


def main() -> None:
    """Run what is missing, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="labelled images with a test part of their own")
    parser.add_argument("--trees", nargs="+", required=True, help="NAME=FOLDER of the sources, the first to compare to")
    parser.add_argument("--name", required=True, help="of the stored result")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=800, help="training images, validation among them")
    parser.add_argument("--test-images", type=int, default=400)
    parser.add_argument("--unseen", type=int, default=2000, help="most further images to evaluate on")
    parser.add_argument("--time", default="5m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    data, unseen = options.work / f"data-{options.images}", options.work / f"unseen-{options.images}"
    export(options.source, data, options.images, options.test_images)
    export_unseen(options.source, unseen, options.images, options.unseen)
    trees = dict(tree.split("=", 1) for tree in options.trees)
    rows = []
    for seed in options.seeds:
        for name, sources in trees.items():
            run = options.work / f"{name}-{options.images}-{options.time}-{seed}"
            paths = os.pathsep.join(str(Path(path).resolve()) for path in sources.split(os.pathsep))
            settings = ["--time", options.time, "--seed", str(seed)]
            rows.append({"tree": name, "seed": seed} | run_tree(paths, data, unseen, run, settings))
            print(rows[-1], flush=True)
    where = surroundings("cpu")
    settings = {key: value for key, value in vars(options).items() if key not in ("work", "source", "trees")}
    lines = summarised(rows, list(trees))
    facts = {"data": Path(options.source).name, "trees": list(trees), "settings": settings, "surroundings": where}
    store(f"ladder_versions_{options.name}", facts | {"mean": lines, "runs": rows})
    print(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
