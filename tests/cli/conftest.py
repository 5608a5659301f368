"""What several files of tests begin with."""

from pathlib import Path

import pytest

from cli.calls import PLAIN, QUICK, TEACHER, WIDE, call, make_photos


@pytest.fixture(scope="session")
def trained(tmp_path_factory, drawing) -> Path:
    """A finished run with its pictures, on a folder of photos beside it."""
    base = tmp_path_factory.mktemp("trained")
    photos = make_photos(base / "photos")
    with drawing():
        assert call("train", photos, *QUICK, "--output", base / "run") == 0
    return base


@pytest.fixture(scope="session")
def labelled(tmp_path_factory) -> Path:
    """Photos twice as wide as they are high, a teacher that knows them, and its maps."""
    base = tmp_path_factory.mktemp("labelled")
    photos, teacher, maps = base / "photos", base / "teacher", base / "maps"
    make_photos(photos, **WIDE)
    changes = ["--mixup", "0", "--cutmix", "0", "--crop", "none", "--average", "0", "--lr", "0.02"]
    assert call("train", photos, *PLAIN, *TEACHER, *changes, "--epochs", "10", "--output", teacher) == 0
    assert call("label", photos, "--teacher", teacher, "--output", maps, "--img-size", "64") == 0
    return base
