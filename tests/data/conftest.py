import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torchvision.datasets import cifar, flowers102, stl10, svhn

from paucal.data.images import ImageSet
from paucal.data.stores import ArrayStore

MakeFolder = Callable[..., Path]


def encode(value: int = 0, size: tuple[int, int] = (12, 8), form: str = "PNG") -> bytes:
    """A picture of one colour, (width, height)."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (value, 255 - value, 7)).save(buffer, form)
    return buffer.getvalue()


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Write small images at the given relative paths (JPEG or PNG by name) and return the folder."""

    def make(*paths: str, root: str = "photos") -> Path:
        folder = tmp_path / root
        folder.mkdir(exist_ok=True)
        for number, path in enumerate(paths):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            form = "JPEG" if file.suffix.lower() in (".jpg", ".jpeg") else "PNG"
            file.write_bytes(encode(number % 256, form=form))
        return folder

    return make


@pytest.fixture
def make_parquet(tmp_path: Path) -> Callable[..., Path]:
    """Write a Parquet file of images with the given columns besides the image."""

    def make(
        name: str,
        count: int,
        columns: dict[str, list],
        metadata: dict[bytes, bytes] | None = None,
        rows: int = 2,
        plain: bool = False,
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures = [encode(value) for value in range(count)]
        image = pictures if plain else [{"bytes": picture, "path": None} for picture in pictures]
        kind = pa.binary() if plain else pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({"image": pa.array(image, kind), **columns})
        pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=rows)
        return path

    return make


@pytest.fixture
def make_set() -> Callable[..., ImageSet]:
    """An image set in memory with the given labels; image i has the constant value i."""

    def make(
        labels: list[int], declared: list[str] | None = None, side: int = 6, keys: list[str] | None = None
    ) -> ImageSet:
        count = len(labels)
        pixels = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, side, side))
        return ImageSet(
            name="made",
            location="made",
            classes=tuple("abcdefghij"[: max(labels) + 1]),
            keys=keys or [f"{i:04d}.png" for i in range(count)],
            labels=np.asarray(labels, dtype=np.int64),
            declared_splits=declared or [""] * count,
            store=ArrayStore(np.ascontiguousarray(pixels)),
        )

    return make


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A data root; torchvision takes any file for the official one."""
    for module in (cifar, flowers102, stl10, svhn):
        monkeypatch.setattr(module, "check_integrity", lambda path, md5=None: os.path.isfile(path))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"
