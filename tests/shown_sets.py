"""A folder in which the commands of the pages can be run: small sets and runs under the names that the pages use."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from PIL import Image

from cli.calls import SMALL, call, make_scenes
from tasks.detection.outlined import write_outlined
from tasks.detection.test_detect_runs import TINY

CLASSES = ("cat", "dog")
LEARNER = ["--model", "dhvt_mini", "--model-args", "embed_dim=32", "depth=3", "num_heads=2", "--img-size", "32"]
CPU = ["-j", "0", "--device", "cpu", "--init", "none"]
SEGMENTS = ("docs/segmenting.md",)
DETECTS = ("docs/detecting.md", "docs/converting.md")
PREDICTS = ("docs/predicting.md",)
GUIDES = ("docs/dhvt.md",)


def make_folder(root: Path) -> None:
    """Write the sets and runs that any page may name, but for those of detectors and segmenters."""
    for name in ("photos", "labelled", "birds"):
        _write_photos(root / name)
    _write_other_sets(root)
    learned = [*LEARNER, *CPU, "--epochs", "12", "--method", "drloc", "--ledger", "--output", root / "runs/1"]
    assert call("train", root / "photos", *learned) == 0
    for name in ("2", "3", "4", "5", "6", "teacher"):
        shutil.copytree(root / "runs/1", root / "runs" / name)
    plain = [*CPU, "--epochs", "1", "--method", "supervised", "--img-size", "32", "--model", "lvvit_t"]
    assert call("train", root / "photos", *plain, "--output", root / "runs/7") == 0
    maps = ["--teacher", root / "runs/teacher", "--min-accuracy", "0", "--output", root / "labels"]
    assert call("label", root / "photos", *maps) == 0
    shutil.copytree(root / "labels", root / "maps")
    torch.save(safetensors.torch.load_file(root / "runs/1/model.safetensors"), root / "weights.pth")


def add_boxes(root: Path, run: str = "runs/1") -> None:
    """Write sets of boxes, and a detector in the folder `run`."""
    for name in ("cells", "other_cells"):
        write_outlined(root / name, 12)
    for name in ("new_images", "new_cells"):
        _write_flat(root / name)
    shutil.rmtree(root / run, ignore_errors=True)
    flags = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", *_words(value))]
    assert call("detect", root / "cells", *flags, "--steps", "4", "--output", root / run) == 0


def add_guide(root: Path) -> None:
    """Write a small CNN as `runs/guide`."""
    plain = [*CPU, "--epochs", "1", "--method", "supervised", "--img-size", "32", "--model", "test_resnet"]
    assert call("train", root / "photos", *plain, "--output", root / "runs/guide") == 0


def add_masks(root: Path) -> None:
    """Write sets of masks, and a segmenter as `runs/7`."""
    for name in ("photos", "runs/7"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("cells", "other_cells"):
        make_scenes(root / name, 12)
    make_scenes(root, 12, parts=("photos", "labels-of-photos"))
    shutil.rmtree(root / "labels", ignore_errors=True)
    (root / "labels-of-photos").rename(root / "labels")
    _write_flat(root / "new_images")
    flags = [*SMALL, "--epochs", "1", "--crops", "1", "--output", root / "runs/7"]
    assert call("segment", root / "cells", *flags) == 0


def _words(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _picture(number: int, side: int = 40) -> Image.Image:
    """Return a picture of noise, bright or dark by the parity of its number."""
    generator = torch.Generator().manual_seed(number)
    noise = torch.randint(0, 80, (side, side, 3), generator=generator) + (130 if number % 2 else 20)
    return Image.fromarray(noise.to(torch.uint8).numpy())


def _write_photos(folder: Path, each: int = 30) -> None:
    """Write class folders; names tell a patient and a video, so that either can be grouped by."""
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            _picture(2 * number + label).save(folder / name / f"patient{number // 3}_video{number // 3}_{number}.png")


def _write_flat(folder: Path, count: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        _picture(1000 + number).save(folder / f"{number}.png")


def _write_other_sets(root: Path) -> None:
    """Write images without labels, tables, lists, Parquet, shards, arrays, and images with opacity."""
    for name in ("unlabelled", "new_photos"):
        _write_flat(root / name, 24)
    for name in ("cat.jpg", "a.jpg", "b.jpg", "photos/cat/1.jpg"):
        _picture(len(name)).save(root / name)
    images = sorted(path for path in (root / "photos").rglob("*.png"))
    rows = [
        f"{path.relative_to(root)},{path.parent.name},{path.name.split('_')[0]},{20 + number}.5,{number % 5}"
        for number, path in enumerate(images)
    ]
    (root / "labels.csv").write_text("\n".join(["image_path,label,patient,age,grade", *rows]))
    (root / "names.txt").write_text("cat\ndog\n")
    domain = root / "domainnet"
    domain.mkdir()
    shutil.copytree(root / "photos", domain / "real")
    listed = [f"real/{path.parent.name}/{path.name} {CLASSES.index(path.parent.name)}" for path in images]
    (domain / "real_train.txt").write_text("\n".join(listed[::2]))
    (domain / "real_test.txt").write_text("\n".join(listed[1::2]))
    (root / "cifar100").mkdir()
    table = {"image": [{"bytes": path.read_bytes(), "path": path.name} for path in images]}
    table["fine_label"] = [CLASSES.index(path.parent.name) for path in images]
    pq.write_table(pa.table(table), root / "cifar100/train-00000-of-00001.parquet")
    assert call("shard", root / "photos", root / "shards") == 0
    for name, mode in (("cutouts", "RGBA"), ("tiles", "L")):
        for label in CLASSES:
            (root / name / label).mkdir(parents=True)
            for number in range(12):
                _picture(2 * number + CLASSES.index(label)).convert(mode).save(root / name / label / f"{number}.png")
