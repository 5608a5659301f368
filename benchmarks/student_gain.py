"""What a teacher from trained weights gives a small DHVT from scratch: its label maps, its guidance, and both.

    python benchmarks/student_gain.py ../shared/data/cifar10 --name student_cifar10 --work runs/student \
        --images 5000 --side 32 --epochs 10

The teacher is a run of `paucal train` that starts from trained weights (the probe, or the probe and tuning with
--teacher-time); `paucal label` asks it about every training image. All arms have the same recipe; differences are
paired by seed. The teacher's weights have seen over a million other images, so that a gain on few images is
distillation from many. Scores are those of the test images; finished runs are not repeated.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import paucal
from esvit_gain import export
from measuring import store, surroundings
from paired import compare
from paucal.cli.main import main as command

# Light changes: with the paper's, so few steps teach nothing. Mixing of images is off in all arms.
RECIPE: dict[str, Any] = {
    "init": "none",
    "model": "dhvt_mini",
    "batch_size": 64,
    "crop_scale": 0.35,
    "drop_path": 0.0,
    "rand_augment": "none",
    "mixup": 0.0,
    "cutmix": 0.0,
    "erase": 0.0,
    "workers": 0,
}
ARMS = ("supervised", "labels", "guide", "labels and guide")


def teacher_of(data: Path, work: Path, time: str | None) -> Path:
    """Return the teacher's run, made if missing."""
    run = work / "teacher"
    if not (run / "summary.json").exists():
        length: dict[str, Any] = {"epochs": 0} if time is None else {"time": time}
        paucal.train(data, output=str(run), overwrite=run.exists(), seed=0, **length)
    return run


def maps_from_grids(data: Path, work: Path, teacher: Path) -> Path:
    """Return the teacher's label maps."""
    maps = work / "maps"
    if command(["label", str(data), "--teacher", str(teacher), "--output", str(maps), "--min-accuracy", "0.2"]):
        raise SystemExit("the teacher gave no maps")
    return maps


def arm_settings(arm: str, maps: Path, teacher: Path) -> dict[str, Any]:
    """Return what an arm adds to the recipe."""
    labels = {"method": "token-labeling", "labels": str(maps), "no_mix_token": True} if "labels" in arm else {}
    guide = {"add": ["locality"], "guide": str(teacher)} if "guide" in arm else {}
    return {"method": "supervised", **labels, **guide}


def run_one(data: Path, output: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train one run, or read what it left."""
    if not (output / "summary.json").exists():
        paucal.train(data, output=str(output), overwrite=output.exists(), **settings)
    summary = json.loads((output / "summary.json").read_text())
    return {name: summary[name] for name in ("best_val_top1", "test_top1", "best_epoch", "seconds", "parameters")}


def main() -> None:
    """Train all arms and store their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--name", required=True, help="of the stored result")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--model-args", nargs="*", default=[], help="a smaller DHVT, for a processor")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--teacher-time", help="tune the teacher as well, in this time; by default it is the probe")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    data = options.work / "data"
    export(options.source, data, options.images, options.test_images)
    teacher = teacher_of(data, options.work, options.teacher_time)
    maps = maps_from_grids(data, options.work, teacher)
    recipe = {**RECIPE, "img_size": [options.side], "epochs": options.epochs, "lr": options.lr}
    recipe["split"] = str(
        teacher / "split.csv"
    )  # what the teacher has not seen is what the students of every seed are tested on
    recipe |= {"device": options.device} | ({"model_args": options.model_args} if options.model_args else {})
    rows = []
    for seed in options.seeds:  # all arms of a seed first, so that what is there can be compared
        for arm in options.arms:
            output = options.work / f"{arm.replace(' ', '-')}-{seed}"
            settings = {**recipe, **arm_settings(arm, maps, teacher), "seed": seed}
            rows.append({"arm": arm, "seed": seed} | run_one(data, output, settings))
            print(rows[-1], flush=True)
        if len(options.seeds) > 1 and seed == options.seeds[0]:
            continue
        left_out = ("work", "source", "name")  # places on this machine
        told = {name: value for name, value in vars(options).items() if name not in left_out}
        facts = {"settings": told, "recipe": {**recipe, "split": "the teacher's", "data": Path(options.source).name}}
        score = json.loads((teacher / "summary.json").read_text())["test_top1"]
        store(
            options.name,
            {"teacher_test_top1": score, "arms": compare(rows), "runs": rows}
            | facts
            | {"surroundings": surroundings(options.device)},
        )


if __name__ == "__main__":
    main()
