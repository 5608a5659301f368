"""Short commands on the accelerator, one per method."""

import csv
import shutil
from pathlib import Path

from cli.calls import LVVIT, call
from device.machine import DEVICE

SHORT = ["--img-size", "16", "-j", "0", "--seed", "1", "-b", "8", "--epochs", "2", "--device", DEVICE]
SHORT += ["--rand-augment", "none"]
CNN = ["--model", "resnet18_cifar", "--model-args", "channels=[8,12,16,20]", "--method", "supervised"]
VIT = ["--model", "vit_mini", "--model-args", "depth=3", "embed_dim=32", "num_heads=2"]
EMBED = ["--model", "swin_tiny_patch4_window7_224", "--img-size", "32", "--device", DEVICE, "-j", "0", "--seed", "1"]
EMBED += ["--model-args", "patch_size=4", "embed_dim=16", "depths=[2, 2]", "num_heads=[2, 2]", "window_size=4"]
EMBED += ["--epochs", "2", "--batch-size", "8"]
PRETRAIN = [*EMBED, "--local-crops", "2", "--local-size", "16", "--out-dim", "32", "--hidden-dim", "24"]
PRETRAIN += ["--bottleneck-dim", "8", "--tasks", "view+region"]
VIEWS = ["--local-crops", "2", "--local-size", "16", "--projection-hidden", "24"]

# Method: the verb, its flags, and the losses it must report. {maps} and {cnn} are of `conftest.Things`.
METHODS: dict[str, tuple[str, list[str], set[str]]] = {
    "supervised": ("train", [*VIT, "--method", "supervised"], {"class"}),
    "drloc": ("train", [*VIT, "--method", "drloc"], {"class", "drloc"}),
    "drloc-blocks": ("train", [*VIT, "--method", "drloc", "--drloc-levels", "blocks", "--drloc-mode", "ce"], {"drloc"}),
    "token-labeling": ("train", [*LVVIT, "--method", "token-labeling", "--labels", "{maps}"], {"class", "tokens"}),
    "token-labeling-outside": ("train", [*VIT, "--method", "token-labeling", "--labels", "{maps}"], {"tokens"}),
    "relabel": ("train", [*VIT, "--method", "relabel", "--labels", "{maps}"], {"class"}),
    "add-drloc": (
        "train",
        [*VIT, "--method", "token-labeling", "--labels", "{maps}", "--add", "drloc"],
        {"tokens", "drloc"},
    ),
    "add-locality": (
        "train",
        [*VIT, "--method", "supervised", "--add", "locality", "--guide", "{cnn}"],
        {"class", "locality"},
    ),
    "add-distillation": (
        "train",
        [*VIT, "--method", "supervised", "--add", "distillation", "--teacher", "{cnn}"],
        {"class", "distillation"},
    ),
    "pretrain": ("pretrain", PRETRAIN, {"view", "region"}),
    "lejepa": ("pretrain", [*EMBED, *VIEWS, "--method", "lejepa"], {"prediction", "sigreg"}),
    "visreg": ("pretrain", [*EMBED, *VIEWS, "--method", "visreg"], {"prediction", "shape"}),
    "diet": ("pretrain", [*EMBED, "--method", "diet"], {"image"}),
}


def run(*words) -> int:
    """Run a command; return its exit code."""
    return call(*words)


def command(method: str, things, output: Path, *more) -> list:
    """Return the words of a short run."""
    verb, flags, _ = METHODS[method]
    places = {"maps": things.maps, "cnn": things.cnn}
    flags = [word.format(**places) if word in ("{maps}", "{cnn}") else word for word in flags]
    short = [] if verb == "pretrain" else SHORT
    if "lvvit_t" in flags:
        short = [*SHORT, "--img-size", "32"]
    return [verb, things.photos, *short, *flags, "--output", output, *more]


def rows(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of a run."""
    lines = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    return [{name: float(value) for name, value in row.items() if value} for row in lines]


def interrupted(method: str, things, output: Path, *more) -> None:
    """Run a method, stopped after a step, to its end."""
    shutil.rmtree(output, ignore_errors=True)
    assert run(*command(method, things, output, *more, "--time-limit", "0.01s")) == 130
    assert run(METHODS[method][0], "--resume", output, "--time-limit", "1h") == 0
