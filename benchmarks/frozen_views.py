"""Cost and gain of computing the activations of frozen stages only once, for a few views of each image.

    python benchmarks/frozen_views.py ../shared/data/clothing --work W --images 200 --seeds 0 1 2 3 4
    python benchmarks/frozen_views.py ../shared/data/clothing --work W --images 800 --seeds 0 1 2

Arms tune the last stages from the same probe in about the same time: `anew` computes everything in `--epochs` epochs,
the others keep so many views and get the epochs that fit in the same time, from the seconds of a training image
measured in pairs: an epoch of `anew` costs 1, one from activations `share`, and each view 1 - `share` beforehand. So
`epochs` = (epochs anew - views * (1 - share)) / share. Differences are paired by seed, on the test images; the best
epoch of each is chosen on validation images. Finished runs are not repeated.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from esvit_gain import export
from measuring import store, surroundings
from paired import compare
from paucal.backbones import BackboneSpec
from paucal.backbones.frozen_stages import FrozenStages
from paucal.objectives import Supervised
from paucal.objectives.finetuning import FineTuning
from paucal.types import Batch, Progress
from student_gain import run_one

# The ladder's first way to tune.
RECIPE: dict[str, Any] = {"lr": 3e-4, "eval_mode": True, "crop_scale": 0.5, "freeze": 4, "workers": 0, "device": "cpu"}
BATCH = 32


def seconds(model: str, side: int, frozen: int, rounds: int) -> dict[str, list[float]]:
    """Return the CPU milliseconds of an image in a step of `anew`, in one from activations, and in frozen stages."""
    backbone = BackboneSpec(model, 10, image_size=(side, side)).build()
    objective = Supervised(backbone, None, 0.0, FineTuning(freeze=frozen, eval_mode=True)).train()
    stages, labels = FrozenStages(objective.deployable(), frozen), torch.arange(BATCH) % 10
    images = torch.randn(BATCH, 3, side, side)
    batch, start = Batch(torch.arange(BATCH), [images], labels), Progress(0, 1, 1)
    kept = stages.activations(images)

    def anew() -> None:
        objective(batch, start).total.backward()

    def from_activations() -> None:
        objective(replace(batch, views=[stages.resume_from(kept)]), start).total.backward()
        stages.forget_activations()

    parts = {"anew": anew, "kept": from_activations, "frozen": lambda: stages.activations(images)}
    times: dict[str, list[float]] = {name: [] for name in parts}
    for number in range(rounds + 1):
        for name, run in parts.items():
            start_time = time.process_time()  # of one thread: other programs wait, too, but are not counted
            run()
            if number:
                times[name].append((time.process_time() - start_time) / BATCH * 1e3)
    return times


def main() -> None:
    """Time the parts of a step, tune with all arms and seeds, and store the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--test-images", type=int, default=400)
    parser.add_argument("--side", type=int, default=160)
    parser.add_argument("--epochs", type=int, default=6, help="of the arm that computes everything in every epoch")
    parser.add_argument("--views", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--share", type=float, help="of the time of an epoch of `anew`; measured by default")
    parser.add_argument("--model", default="tf_efficientnet_lite0.in1k")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], help="none to time the steps alone")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    times = seconds(options.model.split(".")[0], options.side, RECIPE["freeze"], options.rounds)
    ratios = [kept / anew for kept, anew in zip(times["kept"], times["anew"], strict=True)]
    share = options.share or statistics.median(ratios)
    print({name: [round(value, 1) for value in values] for name, values in times.items()}, round(share, 2), flush=True)
    data = options.work / f"data-{Path(options.source).name}-{options.images}"
    if options.seeds:
        export(options.source, data, options.images, options.test_images)
    arms = {"anew": {"epochs": options.epochs}}
    for views in options.views:
        epochs = int((options.epochs - views * (1 - share)) / share)
        arms[f"{views} views"] = {"epochs": epochs, "frozen_views": views}
    recipe = {**RECIPE, "img_size": [options.side], "model": options.model, "batch_size": BATCH}
    rows = []
    for seed in options.seeds:
        for arm, changes in arms.items():
            output = options.work / f"{arm.replace(' ', '-')}-{data.name}-{options.side}-{options.epochs}-{seed}"
            rows.append({"arm": arm, "seed": seed} | run_one(data, output, {**recipe, **changes, "seed": seed}))
            print(rows[-1], flush=True)
    told = {name: value for name, value in vars(options).items() if name not in ("work", "source")}
    facts = {"settings": told, "recipe": {**recipe, "data": Path(options.source).name}, "arms": arms}
    measured = {"milliseconds": times, "share": share, "surroundings": surroundings("cpu")}
    name = f"frozen_views_{Path(options.source).name}_{options.images}_{options.side}"
    store(name, {"scores": compare(rows, "anew") if len(options.seeds) > 1 else [], "runs": rows} | facts | measured)


if __name__ == "__main__":
    main()
