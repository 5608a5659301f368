"""Accuracy against minutes: what a person with a folder of photographs, two cores and a quarter of an hour gets.

    python benchmarks/minutes.py PHOTOS --name clothing --work /tmp/minutes --images 800 --minutes 15

Arms, each a run of `paucal train` on the same split, evaluated once on the test images:

- probe: trained weights, frozen, and a linear head;
- ladder: what `paucal train` does by itself in the time;
- fresh head: the last stages of the same weights tuned at once, with a new head, for the passes that fit in the time;
- scratch: no trained weights, what is chosen in the time;
- scratch, old: the model that was chosen before there was a ladder, stopped by the time;
- fastai: `fine_tune` of fastai with the same images, split, weights and time, where --fastai names the Python of an
  environment that has it (`benchmarks/fastai_minutes.py`).

Arms of --repeat, by default the probe, are repeated with several seeds; the seed moves the split of validation images,
the order and the changes of training images. Finished runs are kept in --work, so that a new call resumes where the
last one stopped.
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import paucal
from esvit_gain import export
from measuring import store, surroundings
from paucal.models.weights.local import find_packaged_weights, verified_path
from paucal.types import UserError

OLD_MODEL = "dhvt_tiny_domain_patch16"
# The ladder's first way to tune, but from a head that knows nothing, with all the time for it.
FRESH = {
    **{"init": "timm", "model": "tf_efficientnet_lite0.in1k", "method": "supervised", "freeze": 4, "eval_mode": True},
    **{
        "lr": 3e-4,
        "batch_size": 16,
        "crop_scale": 0.5,
        "rand_augment": "none",
        "erase": 0.0,
        "mixup": 0.0,
        "cutmix": 0.0,
    },
}
FASTAI_MODEL = "tf_efficientnet_lite0.in1k"


def arms(minutes: float) -> dict[str, dict[str, Any]]:
    """Return the settings of each arm."""
    limit = f"{round(60 * minutes)}s"
    return {
        "probe": {"epochs": 0},
        "ladder": {"time": limit},
        "fresh head": {"time": limit, **FRESH},
        "scratch": {"time": limit, "init": "none"},
        "scratch, old": {"time": limit, "init": "none", "model": OLD_MODEL},
    }


def measured(data: Path, run: Path, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the result of a run of an arm, trained if missing, or the reason why it was refused."""
    kept = run.with_suffix(".json")
    if kept.exists():
        return json.loads(kept.read_text())
    begin = time.monotonic()
    try:
        result = paucal.train(data, output=str(run), overwrite=run.exists(), seed=seed, **settings)
    except UserError as problem:
        found: dict[str, Any] = {"refused": str(problem)}
    else:
        summary = json.loads((run / "summary.json").read_text())
        found = {
            "test": result.report.scores["top1"].value,
            "calibration_error": result.metrics.get("calibration_error"),
            "minutes": (time.monotonic() - begin) / 60,
            "model": summary["model"],
            "epochs": summary["epochs"],
            "rungs": summary["rungs"],
        }
    kept.write_text(json.dumps(found))
    return found


def measured_by_fastai(data: Path, work: Path, minutes: float, seed: int, python: str) -> dict[str, Any]:
    """Return what fastai gives with the split of the ladder's run of that seed, which must be there."""
    kept = work / f"fastai-{seed}.json"
    if not kept.exists():
        weights = find_packaged_weights(FASTAI_MODEL)
        if weights is None or weights.package is None:
            raise SystemExit("the extra `weights` is not installed")
        words = [python, str(Path(__file__).with_name("fastai_minutes.py")), str(data), "--seed", str(seed)]
        words += ["--split", str(work / f"ladder-{seed}" / "split.csv"), "--minutes", str(minutes)]
        words += ["--weights", str(verified_path(weights.package))]
        done = subprocess.run(words, check=False, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise SystemExit(f"fastai: {done.stderr[-2000:]}")
        kept.write_text(done.stdout.strip().splitlines()[-1])
    return json.loads(kept.read_text())


def tabled(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Return Markdown: a row per arm."""
    lines = ["| arm | model | passes | minutes | test accuracy |", "|---|---|---|---|---|"]
    for arm, found in rows.items():
        good = [one for one in found if "test" in one]
        if not good:
            lines.append(f"| {arm} | | | | refused: {found[0]['refused'] if found else ''} |")
            continue
        scores = [100 * one["test"] for one in good]
        spread = f" ± {statistics.stdev(scores):.1f} ({len(scores)} seeds)" if len(scores) > 1 else ""
        took = statistics.mean(one["minutes"] for one in good)
        passes = ", ".join(dict.fromkeys(str(one["epochs"]) for one in good))
        lines.append(f"| {arm} | {good[0]['model']} | {passes} | {took:.1f} | {statistics.mean(scores):.1f}{spread} |")
    return "\n".join(lines)


def draw(rows: dict[str, list[dict[str, Any]]], name: str) -> Figure:
    """Draw test accuracy against minutes, a point per run."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for number, (arm, found) in enumerate(rows.items()):
        good = [one for one in found if "test" in one]
        axes.plot(
            [one["minutes"] for one in good], [100 * one["test"] for one in good], "o", color=f"C{number}", label=arm
        )
    axes.set(xlabel="minutes", ylabel="test accuracy (%)", title=name, xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def main() -> None:
    """Run what is missing, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="labelled images with a test part of their own")
    parser.add_argument("--name", required=True, help="of the stored result")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=800, help="training images, validation among them")
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(arms(1)), choices=list(arms(1)))
    parser.add_argument("--repeat", nargs="+", default=["probe"], choices=list(arms(1)), help="arms with all seeds")
    parser.add_argument("--fastai", help="Python of an environment with fastai and timm")
    options = parser.parse_args()
    data = options.work / "data"
    export(options.source, data, options.images, options.test_images)
    rows: dict[str, list[dict[str, Any]]] = {}
    for arm in options.arms:
        for seed in options.seeds if arm in options.repeat else options.seeds[:1]:
            run = options.work / f"{arm.replace(', ', '-').replace(' ', '-')}-{seed}"
            rows.setdefault(arm, []).append(measured(data, run, arms(options.minutes)[arm], seed))
            print(arm, seed, rows[arm][-1], flush=True)
    for seed in options.seeds[:1] if options.fastai else ():
        rows["fastai"] = [measured_by_fastai(data, options.work, options.minutes, seed, options.fastai)]
        print("fastai", seed, rows["fastai"][-1], flush=True)
    left_out = ("work", "source", "fastai")  # places on this machine
    settings = {key: str(value) for key, value in vars(options).items() if key not in left_out}
    store(f"minutes_{options.name}", {"surroundings": surroundings("cpu"), "settings": settings, "rows": rows})
    draw(rows, options.name).savefig(Path(__file__).parent / "results" / f"minutes_{options.name}.png", dpi=110)
    print(tabled(rows))


if __name__ == "__main__":
    main()
