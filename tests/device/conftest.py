"""What the tests of an accelerator share: exact products, and the first runs that later ones need."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from cli.calls import make_photos
from device import calls
from device.machine import DEVICE


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Multiply in float32 where float32 is asked for: convolutions would be rounded to 10 bits (TF32)."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch) -> None:
    """On the CPU, which only shows that the tests are right, code is traced but not compiled: that takes minutes."""
    compiled = nn.Module.compile
    if DEVICE == "cpu":
        monkeypatch.setattr(
            nn.Module, "compile", lambda self, backend=None, **how: compiled(self, backend="eager", **how)
        )


class Things(NamedTuple):
    """Photos, and runs on them."""

    photos: Path
    cnn: Path
    maps: Path


@pytest.fixture(scope="session")
def things(tmp_path_factory) -> Things:
    """Photos of three classes, a small CNN trained on them, and its label maps: all on the device."""
    base = tmp_path_factory.mktemp("device")
    found = Things(make_photos(base / "photos"), base / "cnn", base / "maps")
    assert calls.run("train", found.photos, *calls.SHORT, *calls.CNN, "--output", found.cnn) == 0
    words = ["--teacher", found.cnn, "--device", DEVICE, "--min-accuracy", "0", "--img-size", "32"]
    assert calls.run("label", found.photos, *words, "--output", found.maps) == 0
    return found
