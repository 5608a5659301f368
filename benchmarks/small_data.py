"""Which backbone and method for how many images: a plain ViT, Swin, DHVT, DHVT with DrLoc and a ResNet-18, all small.

All arms have the same recipe but for the learning rate, which `--rates` chooses for each on validation images. A run's
epoch is the best on the validation images; the test images are read once, at its end. Every run is stored as it ends,
and stored runs are not repeated. Differences are paired by seed: arms share images and splits.

    python benchmarks/small_data.py ../shared/data/cifar10 --images 500 --epochs 10 --seeds 10 --rates 1e-3 2e-3 4e-3
    python benchmarks/small_data.py ../shared/data/cifar10 --images 500 --epochs 25
    python benchmarks/small_data.py ../shared/data/cifar10 --images 500 --seconds 60
    python benchmarks/small_data.py ../shared/data/clothing --side 64 --epochs 6 --seeds 0 1 --rates-of CIFAR_RESULTS

All arms of a seed are one call of `paucal.compare`, which trains, stops and resumes them. The script adds what it
cannot express: a guide that is the run of another arm with the same seed, equal seconds of training after a measurement
of each arm, rates taken from other results, and one file of results that grows over sets of images, from which a
rule of `paucal train` is tested.

With `--images` a stratified part of a set in Parquet files is taken, so many images to train and a tenth as many (200
at least) to validate. With `--seconds` each arm gets the epochs that fit; how long one takes is measured first.
"""

import argparse
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paucal
from measuring import surroundings
from paired import make_subset
from paucal.runs import RunFolder
from small_data_table import draw, groups, table

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
TEST = 2000
TIMED_EPOCHS, TURNS = 3, 2  # to measure how long an epoch takes
RECIPE: dict[str, Any] = {
    "batch_size": 32,
    "crop": "padded",
    "hflip": 0.5,
    "drop_path": 0.0,
    "rand_augment": "none",
    "mixup": 0.0,
    "cutmix": 0.0,
    "erase": 0.0,
    "device": "cpu",
    "workers": 0,
    "method": "supervised",
}
STRIDES = ("patch_size", "stem_stride")
_VIT = {"embed_dim": 64, "depth": 4, "num_heads": 2}
# Model, and its arguments for a side of 32 pixels; all see 8x8 cells in the end, the CNNs 4x4.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_cifar_patch4", {"patch_size": 4, **_VIT}),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"patch_size": 2, "window_size": 4, "embed_dim": 32, "depths": [1, 3], "num_heads": [1, 2]},
    ),
    "vit-mini": ("vit_mini", {"patch_size": 1, **_VIT}),  # the plain ViT on a convolutional stem
    "dhvt": ("dhvt_tiny_cifar_patch4", {"patch_size": 4, **_VIT}),
    "resnet18": ("resnet18_cifar", {"stem_stride": 1, "channels": [10, 20, 40, 80]}),
    "convnext": ("convnext_atto", {"patch_size": 1, "dims": [16, 32, 64, 128], "depths": [1, 1, 3, 1]}),
}
MIXED = {"mixup": 0.8, "cutmix": 1.0}
# Model, and the settings in which the arm differs.
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in MODELS},
    "dhvt-drloc": ("dhvt", {"method": "drloc"}),
    "vit-mixed": ("vit", MIXED),
    "dhvt-mixed": ("dhvt", MIXED),
    "resnet18-mixed": ("resnet18", MIXED),
    "dhvt-unsmoothed": ("dhvt", {"label_smoothing": 0.0}),
    "vit-mimetic": ("vit", {"attention_init": "mimetic"}),
    "vit-guided": ("vit", {"add": ["locality"], "guide": "resnet18"}),  # by the ResNet-18 of the same length
    "dhvt-mimetic": ("dhvt", {"attention_init": "mimetic"}),
}
MAIN = ["vit", "swin", "dhvt", "dhvt-drloc", "resnet18"]


def n_val(images: int) -> int:
    """Return the validation images of a part."""
    return max(200, images // 10)


def settings_of(arm: str, side: int) -> dict[str, Any]:
    """Return the settings of an arm but for length, rate and seed."""
    model, changes = ARMS[arm]
    name, arguments = MODELS[model]
    # All strides grow with the images, so that the cells are as many.
    scaled = {key: value * side // 32 if key in STRIDES else value for key, value in arguments.items()}
    words = [f"{key}={json.dumps(value)}" for key, value in scaled.items()]
    return {**RECIPE, "model": name, "model_args": words, "img_size": [side], **changes}


def trained(data: Path, output: Path, ways: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, RunFolder]:
    """Train ways in one comparison, or go by what is there, and return all of its runs by their names."""
    found = paucal.compare(
        data, arms={name: {"init": "none", **own} for name, own in ways.items()}, seeds=[seed], output=str(output)
    )
    for name, error in found.failed.items():
        raise SystemExit(f"{name} failed: {error}")
    return {one.arm.name: one.outcomes[seed].cell.run for one in found.findings.arms}


def outcome_of(run: RunFolder) -> dict[str, Any]:
    """Return what is kept of a finished run."""
    summary, rows = run.read_json("summary.json"), run.read_rows()
    kept = ("best_val_top1", "test_top1", "best_epoch", "seconds", "parameters")
    return {name: summary[name] for name in kept} | {
        "epoch_seconds": round(summary["seconds"] / len(rows), 2),
        "val_top1": [row["val_top1"] for row in rows],
    }


def best_rates(rows: list[Row], options: argparse.Namespace) -> dict[str, float]:
    """Return the rate of each model whose tried run was best on validation images, here or in `--rates-of`."""
    others = json.loads(options.rates_of.read_text())["runs"] if options.rates_of else []
    tried = sorted((row for row in [*others, *rows] if row["tried"]), key=lambda row: row["best_val_top1"])
    return {row["arm"]: row["lr"] for row in tried}


def main() -> None:
    """Run what is asked for and not stored, storing each run as it ends; then write the table."""
    options = arguments()
    stored = RESULTS / f"{options.name}.json"
    results: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {"runs": []}
    rows: list[Row] = results["runs"]
    data, part = options.data, {}
    if options.images:
        folder, count = options.work / f"images-{options.images}", options.images + n_val(options.images)
        data = make_subset(options.data, folder, count, TEST)
        part["val_fraction"] = n_val(options.images) / count
    if options.seconds:
        time_arms(data, results.setdefault("epoch_seconds", {}), options, part)
    for seed in options.seeds:
        asked = [one for arm in options.arms for one in labels(arm, seed, results, options)]
        missing = [label for label in asked if not any(label.items() <= row.items() for row in rows)]
        guided = [label for label in missing if "guide" in settings_of(label["arm"], options.side)]
        for some in ([label for label in missing if label not in guided], guided):  # the guides come first
            if some:
                rows += compared(data, some, part, rows, options)
                write(stored, results, options)
    print(table(rows))


def compared(data: Path, some: list[Row], part: Row, rows: list[Row], options: argparse.Namespace) -> list[Row]:
    """Return the rows of labels of one seed, from one comparison."""
    seed, output = some[0]["seed"], folder_of(some[0], options.work)

    def way(label: Row) -> dict[str, Any]:
        changes = {"epochs": label["epochs"], "lr": label["lr"]}
        settings = {**settings_of(label["arm"], options.side), **part, **changes}
        if "guide" in settings:
            guide = {"arm": settings["guide"], "lr": best_rates(rows, options).get(settings["guide"], options.lr)}
            own = {**label, **guide}
            guides = trained(data, output, {name_of(own): way(own)}, seed)  # nothing is repeated that is there
            settings["guide"] = str(guides[name_of(own)].path)
        return settings

    runs = trained(data, output, {name_of(label): way(label) for label in some}, seed)
    return [label | outcome_of(runs[name_of(label)]) for label in some]


def name_of(label: Row) -> str:
    """Return what tells a label from the others of its seed."""
    return f"{label['arm']} at {label['lr']:g}, {label['epochs']} epochs"


def time_arms(data: Path, times: dict[str, dict[str, float]], options: argparse.Namespace, part: Row) -> None:
    """Measure how long an epoch takes, of arms of which that is not known for these images."""
    known = times.setdefault(f"{options.images} of {options.side} pixels", {})
    missing = {arm: {**settings_of(arm, options.side), **part} for arm in options.arms if arm not in known}
    known.update(epoch_seconds(data, options.work, missing))


def epoch_seconds(data: Path, work: Path, arms: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of an epoch of each arm, its validation included.

    Arms take turns. The shortest of four epochs counts, since other work on the machine can only lengthen one; the
    first epoch of a run, which reads the images, is left out. `arms` has settings by name, without length, rate and
    seed; their runs in `work` are overwritten.
    """
    found: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(TURNS):
        for name, settings in arms.items():
            output = work / f"timing-{name}"
            length = {"epochs": TIMED_EPOCHS, "lr": 1e-3, "seed": turn}
            paucal.train(data, output=str(output), overwrite=True, **{"init": "none", **settings, **length})
            ends = [row["seconds"] for row in RunFolder(output).read_rows()]
            found[name] += [after - before for before, after in itertools.pairwise(ends)]
    return {name: round(min(times), 3) for name, times in found.items()}


def labels(arm: str, seed: int, results: dict[str, Any], options: argparse.Namespace) -> list[Row]:
    """Return what tells the runs of an arm and a seed from all others: one run, or one for each rate to try."""
    epochs = options.epochs
    if options.seconds:
        epoch = results["epoch_seconds"][f"{options.images} of {options.side} pixels"][arm]
        epochs = max(1, int(options.seconds / epoch))
    rates = options.rates or [best_rates(results["runs"], options).get(ARMS[arm][0], options.lr)]
    place = {"images": options.images, "side": options.side, "arm": arm, "seed": seed}
    mode = {"tried": bool(options.rates), "equal": "epochs" if options.epochs else "seconds"}
    return [{**place, "lr": rate, "epochs": epochs, **mode} for rate in rates]


def folder_of(label: Row, work: Path) -> Path:
    """Return the folder of the comparison that a label belongs to."""
    return work / f"{label['images'] or 'all'}-images-{label['side']}-pixels-seed-{label['seed']}"


def write(path: Path, results: dict[str, Any], options: argparse.Namespace) -> None:
    """Store all runs, with what they have in common."""
    rows = results["runs"]
    models = {name: settings_of(name, options.side)["model_args"] for name in MODELS}
    facts = {"data": options.data.name, "recipe": RECIPE, "models": models, "surroundings": surroundings("cpu")}
    path.write_text(json.dumps({**results, **facts}, indent=1) + "\n")
    for group in groups(rows):
        first = group[0]
        name = f"{path.stem}_{first['images'] or 'all'}_{first['equal']}.png"
        draw(group).savefig(path.with_name(name), dpi=110)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of Parquet files, or any data paucal reads, without --images")
    parser.add_argument("--work", type=Path, default=Path("runs/small_data"), help="where runs go")
    parser.add_argument("--name", help="of the results; by default small_data_ and the data's name")
    parser.add_argument("--images", type=int, default=0, help="training images; all there are where it is not given")
    parser.add_argument("--side", type=int, default=32, choices=(32, 64), help="pixels")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=MAIN)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=int, help="the same for all arms")
    length.add_argument("--seconds", type=float, help="of training, the same for all arms")
    parser.add_argument("--rates", nargs="+", type=float, help="learning rates to try; later runs take the best")
    parser.add_argument("--rates-of", type=Path, help="stored results whose tried rates are taken")
    parser.add_argument("--lr", type=float, default=2e-3, help="where none was tried")
    options = parser.parse_args()
    options.name = options.name or f"small_data_{options.data.name}"
    return options


if __name__ == "__main__":
    main()
