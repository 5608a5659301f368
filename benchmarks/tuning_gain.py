"""What DrLoc adds while trained weights are tuned on few images.

    python benchmarks/tuning_gain.py CLOTHING --name tuning_clothing_800 --work runs/tuning --images 800

Both arms begin with the same weights and the same linear head fitted to frozen features, tune in the same way for as
many passes, and share the split of each seed; differences are paired by seed. The way to tune is given, so that no
trial chooses another one for either arm. Scores are those of the test images; finished runs are not repeated.
"""

import argparse
from pathlib import Path
from typing import Any

from esvit_gain import export
from measuring import store, surroundings
from paired import compare
from student_gain import run_one

# The ladder's first way to tune, but for the stages: DrLoc should reach further down than the head.
RECIPE: dict[str, Any] = {"lr": 3e-4, "eval_mode": True, "crop_scale": 0.5, "freeze": 3, "workers": 0}
ARMS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "drloc": {"add": ["drloc"]},
    "drloc-0.1": {"add": ["drloc"], "drloc_weight": 0.1},
}


def main() -> None:
    """Tune with all arms and seeds, and store the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--name", required=True, help="of the stored result")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--model", default="tf_efficientnet_lite0.in1k")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["supervised", "drloc"])
    options = parser.parse_args()
    data = options.work / f"data-{options.images}"
    export(options.source, data, options.images, options.test_images)
    recipe = {**RECIPE, "img_size": [options.side], "epochs": options.epochs, "model": options.model, "device": "cpu"}
    rows = []
    for seed in options.seeds:
        for arm in options.arms:
            output = options.work / f"{arm}-{options.images}-{options.side}-{options.epochs}-{seed}"
            rows.append({"arm": arm, "seed": seed} | run_one(data, output, {**recipe, **ARMS[arm], "seed": seed}))
            print(rows[-1], flush=True)
    told = {name: value for name, value in vars(options).items() if name not in ("work", "source", "name")}
    facts = {"settings": told, "recipe": {**recipe, "data": Path(options.source).name}}
    where = {"surroundings": surroundings("cpu")}
    store(options.name, {"arms": compare(rows) if len(options.seeds) > 1 else [], "runs": rows} | facts | where)


if __name__ == "__main__":
    main()
