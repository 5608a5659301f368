"""`paucal check` ends with 1 exactly where `paucal train` would refuse a set that is meant to have labels."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import paucal
from cli.calls import call, make_photos
from paucal.data.unreadable import OnBad
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import SilentConsole
from paucal.tasks.classification.assembly import _open_images
from paucal.types import UserError


def photos(root: Path, classes: int = 2, each: int = 6) -> Path:
    return make_photos(root, classes, each, size=(12, 10))


def flat(root: Path, seed: int = 0) -> Path:
    make_photos(root, 1, 6, size=(12, 10), seed=seed)
    for path in sorted(root.rglob("*.png")):
        shutil.move(path, root / path.name)
    (root / "class0").rmdir()
    return root


def one_class(root: Path) -> Path:
    return photos(root, 1)


def empty_class(root: Path) -> Path:
    (photos(root) / "#recycle bin").mkdir()
    return root


def class_of_one_image(root: Path) -> Path:
    shutil.copy(photos(root) / "class0/0.png", root / "class1/0.png")
    (root / "rare").mkdir()
    shutil.move(root / "class0/1.png", root / "rare/1.png")
    return root


def only_test(root: Path) -> Path:
    photos(root / "test")
    return root


def part_without_classes(root: Path) -> Path:
    photos(root / "train")
    flat(root / "test")
    return root


def part_twice(root: Path) -> Path:
    photos(root / "train")
    photos(root / "Training")
    return root


def folder_beside_parts(root: Path) -> Path:
    photos(root / "train")
    photos(root / "more")
    return root


def damaged(root: Path) -> Path:
    path = photos(root) / "class0/3.png"
    path.write_bytes(path.read_bytes()[:60])
    return root


def nothing_readable(root: Path) -> Path:
    for path in photos(root).rglob("*.png"):
        path.write_bytes(b"no image")
    return root


def table(root: Path, header: str, row: Callable[[Path], str], extra: str = "") -> Path:
    photos(root / "images")
    rows = [row(path.relative_to(root)) for path in sorted((root / "images").rglob("*.png"))]
    (root / "table.csv").write_text(header + "".join(f"{line}\n" for line in rows) + extra)
    return root / "table.csv"


def labelled(path: Path) -> str:
    return f"{path},{path.parent.name}"


def sound_table(root: Path) -> Path:
    return table(root, "image,label\n", labelled)


def contradicting_rows(root: Path) -> Path:
    return table(root, "image,label\n", labelled, "images/class0/0.png,class1\n")


def missing_file(root: Path) -> Path:
    return table(root, "image,label\n", labelled, "images/class0/99.png,class0\n")


def table_of_one_class(root: Path) -> Path:
    return table(root, "image,label\n", lambda path: f"{path},cat")


def unknown_column(root: Path) -> Path:
    return table(root, "image,diagnosis\n", labelled)


def table_of_paths(root: Path) -> Path:
    return table(root, "image\n", str)


def listed(root: Path, row: Callable[[Path], str]) -> Path:
    shutil.move(table(root, "", row), root / "list.txt")
    return root / "list.txt"


def list_of_paths(root: Path) -> Path:
    return listed(root, str)


def list_with_a_bare_line(root: Path) -> Path:
    file = listed(root, lambda path: f"{path} {path.parent.name[-1]}")
    file.write_text(f"{file.read_text()}images/class0/0.png\n")
    return file


def damaged_archive(root: Path) -> Path:
    root.mkdir()
    (root / "set.zip").write_bytes(b"PK\x03\x04 and no more")
    return root / "set.zip"


def parquet(root: Path, **columns: list) -> Path:
    root.mkdir()
    content = io.BytesIO()
    Image.new("RGB", (9, 9)).save(content, "PNG")
    rows = {"image": [{"bytes": content.getvalue(), "path": f"{n}.png"} for n in range(8)], **columns}
    pq.write_table(pa.table(rows), root / "images.parquet")
    return root


def parquet_of_images(root: Path) -> Path:
    return parquet(root)


def parquet_of_one_class(root: Path) -> Path:
    return parquet(root, label=["cat"] * 8)


def two_numbers_of_channels(root: Path) -> Path:
    for name, channels in (("a", 4), ("b", 5)):
        (root / name).mkdir(parents=True)
        for number in range(4):
            np.save(root / name / f"{number}.npy", np.zeros((8, 8, channels), dtype=np.uint8))
    return root


def parts_without_classes(root: Path) -> Path:
    for seed, part in enumerate(("train", "val")):
        flat(root / part, seed)
    return root


def single_image(root: Path) -> Path:
    return flat(root) / "0.png"


def nowhere(root: Path) -> Path:
    return root / "nowhere"


BROKEN = [
    *(one_class, empty_class, class_of_one_image, only_test, part_without_classes, part_twice, folder_beside_parts),
    *(damaged, contradicting_rows, missing_file, table_of_one_class, unknown_column, list_with_a_bare_line),
    *(damaged_archive, parquet_of_one_class, two_numbers_of_channels),
]
SOUND = [photos, sound_table]
UNLABELLED = [flat, table_of_paths, list_of_paths, parquet_of_images, parts_without_classes, single_image]
CASES = [
    *((make, "refuse", 1) for make in BROKEN),
    *((make, "refuse", 0) for make in SOUND),
    *((make, "refuse", 0) for make in UNLABELLED),
    (damaged, "skip", 0),
    (nothing_readable, "skip", 1),
    (nowhere, "refuse", 2),  # a mistake of the call
]


def refusal_of(place: Path, on_bad: OnBad) -> str:
    """Return the sentence with which a run of `paucal train` would refuse images as it opens them; "" for none."""
    settings = TrainSettings(data=str(place), img_size=[16], on_bad_image=on_bad)
    try:
        _open_images(settings, SilentConsole().progress, None)
    except UserError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize(("make", "on_bad", "code"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_check__ends_with_1_exactly_where_train_refuses(make, on_bad: OnBad, code: int, tmp_path, capsys):
    place = make(tmp_path / "set")
    refused = refusal_of(place, on_bad)
    assert bool(refused) == (make not in SOUND and (make, on_bad) != (damaged, "skip"))
    capsys.readouterr()
    assert call("check", place, "--on-bad-image", on_bad) == code
    output = capsys.readouterr()
    if refused:
        assert " ".join(refused.rstrip(".").partition(";")[0].split()) in " ".join((output.out + output.err).split())


def test_check__leaves_out_what_cannot_be_read_where_a_run_does(tmp_path):
    root = damaged(tmp_path / "set")
    for number in range(2):
        shutil.copy(root / "class1/0.png", root / f"class1/copy{number}.png")
    refused, skipped = (paucal.check(root, on_bad_image=value) for value in ("refuse", "skip"))
    whole, left, copies = refused.of("unreadable"), skipped.of("unreadable"), skipped.of("duplicates-across-parts")
    assert whole is not None
    assert left is not None
    assert copies is not None
    assert (whole.level, left.level) == ("misleads", "warning")
    assert (refused.facts["images"], skipped.facts["images"]) == (14, 13)
    assert "class0/3.png" not in skipped.checked.images.keys
    keys = [skipped.checked.images.keys[place] for group in copies.groups for place in group]
    assert keys == ["class1/0.png", "class1/copy0.png", "class1/copy1.png"]
    assert "class0/3.png" in left.text
