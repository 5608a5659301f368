"""What token labels give on few real photographs: a teacher, its maps, and a small LV-ViT with and without them.

Every arm has the same recipe; differences are paired by seed. Scores are those of the epoch that is best on the
validation images. What is finished is not repeated.

    python benchmarks/token_gain.py ../shared/data/clothing --work runs/token_gain --seeds 0 1
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import paucal
from drloc_gain import compare
from measuring import store, surroundings
from paucal.cli.main import main as command

SIDE = 96
# Light changes: with the paper's, so few steps teach nothing. Mixing of images is off in all arms.
RECIPE: dict[str, Any] = {
    "img_size": [SIDE],
    "batch_size": 64,
    "crop_scale": 0.35,
    "drop_path": 0.0,
    "rand_augment": "none",
    "mixup": 0.0,
    "cutmix": 0.0,
    "erase": 0.0,
    "device": "cpu",
    "workers": 0,
}
TEACHER: dict[str, Any] = {
    "model": "resnet10t",
    "model_args": ["channels=[24,48,96,192]", "stem_width=16", "output_stride=32"],
    "method": "supervised",
}
STUDENT: dict[str, Any] = {
    "model": "lvvit_t",
    "model_args": ["embed_dim=96", "depth=4", "num_heads=4", "stem_width=16", "patch_size=16"],
}
ARMS: dict[str, dict[str, Any]] = {
    "supervised": {"method": "supervised"},
    "token-labeling": {"method": "token-labeling"},
    "token-labeling-unmixed": {"method": "token-labeling", "no_mix_token": True},
    "relabel": {"method": "relabel"},
}


def make_maps(data: Path, work: Path, epochs: int, side: int) -> Path:
    """Train the teacher and ask it about every image; return the folder of maps."""
    teacher, maps = work / "teacher", work / f"maps-{side}"
    if not (teacher / "summary.json").exists():
        settings = {**RECIPE, **TEACHER, "epochs": epochs, "lr": 2e-3, "seed": 0}
        paucal.train(data, output=str(teacher), overwrite=True, **{"init": "none", **settings})
    words = ["label", str(data), "--teacher", str(teacher), "--output", str(maps)]
    if command([*words, "--img-size", str(side), "--min-accuracy", "0.3"]):
        raise SystemExit("the teacher gave no maps")
    return maps


def run_one(data: Path, work: Path, maps: Path, arm: str, seed: int, epochs: int, lr: float) -> dict[str, Any]:
    """Train one run, or read what it left."""
    output = work / f"{arm}-{maps.name}-{epochs}-{lr:g}-{seed}"
    if not (output / "summary.json").exists():
        labels = {} if arm == "supervised" else {"labels": str(maps)}
        settings = {**RECIPE, **STUDENT, **ARMS[arm], **labels, "epochs": epochs, "lr": lr, "seed": seed}
        paucal.train(data, output=str(output), overwrite=True, **{"init": "none", **settings})
    summary = json.loads((output / "summary.json").read_text())
    with (output / "metrics.csv").open() as file:
        curve = [float(row["val_top1"]) for row in csv.DictReader(file)]
    return (
        {"arm": arm, "seed": seed, "lr": lr, "epochs": epochs}
        | {name: summary[name] for name in ("best_val_top1", "test_top1", "best_epoch", "seconds", "parameters")}
        | {"val_top1": curve}
    )


def main() -> None:
    """Train all arms and store their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/token_gain"))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["supervised", "token-labeling"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--teacher-epochs", type=int, default=10)
    parser.add_argument("--map-side", type=int, default=SIDE, help="pixels the teacher looks at images with")
    parser.add_argument("--name", default="token_gain", help="of the stored result")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    maps = make_maps(options.data, options.work, options.teacher_epochs, options.map_side)
    teacher = json.loads((options.work / "teacher" / "summary.json").read_text())["test_top1"]
    rows = []
    for seed in options.seeds:  # all arms of a seed first, so that what is there can be compared
        for arm in options.arms:
            rows.append(run_one(options.data, options.work, maps, arm, seed, options.epochs, options.lr))
        if len(options.seeds) > 1 and seed == options.seeds[0]:
            continue
        settings = {name: value for name, value in vars(options).items() if name not in ("work", "name")}
        settings["data"] = options.data.name
        facts = {"settings": settings, "recipe": RECIPE, "student": STUDENT, "teacher": TEACHER}
        result = {"teacher_test_top1": teacher, "arms": compare(rows), "runs": rows}
        store(options.name, {**result, **facts, "surroundings": surroundings("cpu")})


if __name__ == "__main__":
    main()
