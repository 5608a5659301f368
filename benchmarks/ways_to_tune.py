"""The ways to tune that the trials of `paucal train` choose from, each on its own for about the same time.

    python benchmarks/ways_to_tune.py CLOTHING --name clothing_800 --work /tmp/ways --images 800 --seeds 100 101

All ways begin with the same weights and the same linear head, share the split of each seed, and make as many epochs as
their steps cost less (thread time of a step of EfficientNet-Lite0, `--epochs` for all layers). Each model, its epoch
chosen on validation images, is evaluated on labelled images that no run has seen: those of the training part that were
not drawn, and the validation part. The test part is not looked at. Finished runs are kept in --work.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any
from unittest.mock import patch

import paucal
from esvit_gain import export
from ladder_versions import export_unseen
from measuring import store, surroundings
from paucal.tasks.classification.auto_tune import tuning
from paucal.tasks.classification.auto_tune.trials import TuningPreset

LAST = {"freeze": 4, "eval_mode": True, "lr": 3e-4, "crop_scale": 0.5}
# Settings of each way, and its epochs for one of all layers: 40.8 ms a step and image, 19.2 for the last stages, 39.5
# for norms and biases (160 pixels, batches of 16).
WAYS: dict[str, tuple[dict[str, Any], float]] = {
    "last stages": (LAST, 2.1),
    "all layers, norms learning": ({"lr": 1e-3, "crop_scale": 0.6, "eval_mode": False}, 1.0),
    "all layers": ({"lr": 2e-4, "crop_scale": 0.35, "eval_mode": True}, 1.0),
    **{
        f"norms and biases, {rate:g}": ({"freeze": "weights", "eval_mode": True, "lr": rate, "crop_scale": 0.5}, 1.0)
        for rate in (1e-3, 3e-3, 1e-2)
    },
    "last stages, twice the time": (LAST, 4.2),
    "last stages, four times the time": (LAST, 8.4),
}


def run_way(way: str, data: Path, unseen: Path, run: Path, settings: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Return the accuracies of a run, made if missing."""
    kept = run.with_suffix(".json")
    if not kept.exists():
        with patch.object(tuning, "presets_for", return_value=[TuningPreset(way, WAYS[way][0])]):
            paucal.train(data, output=str(run), overwrite=run.exists(), **settings, epochs=epochs)
        summary = json.loads((run / "summary.json").read_text())
        others = paucal.evaluate(str(run), str(unseen), device="cpu", output=str(run / "unseen"))
        names = ("best_val_top1", "best_epoch", "epochs", "averaged_epochs", "kept")
        found = {"unseen": 100 * others.metrics["top1"], "loss": others.metrics["loss"], "epochs": epochs}
        kept.write_text(json.dumps(found | {name: summary[name] for name in names}))
    return json.loads(kept.read_text())


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean accuracy of each way, and its differences to the first way paired by seed."""
    first = {row["seed"]: row["unseen"] for row in rows if row["way"] == rows[0]["way"]}
    lines = []
    for way in dict.fromkeys(row["way"] for row in rows):
        own = {row["seed"]: row["unseen"] for row in rows if row["way"] == way}
        gains = [round(own[seed] - first[seed], 2) for seed in own]
        lines.append({"way": way, "unseen": round(statistics.mean(own.values()), 2), "gains": gains})
    return lines


def main() -> None:
    """Tune in all ways with all seeds, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="labelled images with a test part of their own")
    parser.add_argument("--name", required=True, help="of the stored result")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=800, help="training images, validation among them")
    parser.add_argument("--unseen", type=int, default=2000, help="most images to evaluate on")
    parser.add_argument("--side", type=int, default=160)
    parser.add_argument("--epochs", type=int, default=4, help="of all layers")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS)[:5])
    parser.add_argument("--seeds", nargs="+", type=int, default=[100, 101])
    options = parser.parse_args()
    data, unseen = options.work / f"data-{options.images}", options.work / f"unseen-{options.images}"
    export(options.source, data, options.images, 20)
    export_unseen(options.source, unseen, options.images, options.unseen)
    rows = []
    for seed in options.seeds:
        for way in options.ways:
            epochs = round(options.epochs * WAYS[way][1])
            run = options.work / f"{way.replace(', ', '-').replace(' ', '-')}-{options.side}-{epochs}-{seed}"
            settings = {"model": "tf_efficientnet_lite0.in1k", "img_size": [options.side], "seed": seed}
            settings |= {"device": "cpu", "workers": 0, "soup": 3}
            rows.append({"way": way, "seed": seed} | run_way(way, data, unseen, run, settings, epochs))
            print(rows[-1], flush=True)
    settings = {key: value for key, value in vars(options).items() if key not in ("work", "source")}
    facts = {"data": Path(options.source).name, "settings": settings, "surroundings": surroundings("cpu")}
    store(f"ways_to_tune_{options.name}", facts | {"mean": summarised(rows), "runs": rows})
    print(json.dumps(summarised(rows), indent=1))


if __name__ == "__main__":
    main()
