"""Places for results are tried at the beginning."""

import os
from pathlib import Path

import pytest

from paucal.reading import expand_user_path
from paucal.runner.writable import check_file_writable, check_folder_writable
from paucal.types import UserError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--output is empty"),
        ("  ", "--output is empty"),
        ("a\0b", "a path cannot contain a null byte"),
        ("~nobody-of-that-name/x", "there is no such user"),
    ],
)
def test_named_path__refuses_what_names_nothing(text, message):
    with pytest.raises(UserError, match=message):
        expand_user_path(text)


def test_named_path__knows_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_user_path("~/runs/1") == Path("/home/me/runs/1")
    assert expand_user_path("~") == Path("/home/me")
    assert expand_user_path("a~/b") == Path("a~/b")


def impossible(tmp_path: Path) -> list[Path]:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    return [
        tmp_path / ("x" * 300),
        tmp_path / ("x" * 300) / "y",
        tmp_path / "file" / "run",
        tmp_path / "new" / "\0",
        tmp_path / "loop" / "run",
        Path("/proc/run"),
    ]


def test_try__refuses_what_cannot_be_written_and_leaves_nothing(tmp_path):
    places = impossible(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for tried in (check_folder_writable, check_file_writable):
        for place in places:
            with pytest.raises(UserError, match="cannot be written") as caught:
                tried(place)
            assert len(str(caught.value)) < 300
            assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="the superuser may write anywhere")
def test_try__refuses_a_folder_that_is_read_only(tmp_path):
    tmp_path.chmod(0o555)
    for tried in (check_folder_writable, check_file_writable):
        with pytest.raises(UserError, match="permission denied"):
            tried(tmp_path / "run")


def test_try__leaves_everything_as_it_was(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    check_folder_writable(tmp_path / "a" / "b" / "c")
    check_folder_writable(tmp_path / "old")
    check_file_writable(tmp_path / "old" / "new.csv")
    check_file_writable(tmp_path / "a" / "b.csv")
    assert sorted(tmp_path.rglob("*")) == before


def test_try_file__refuses_what_exists(tmp_path):
    (tmp_path / "there").write_text("x")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("there", "dangling", "."):
        with pytest.raises(UserError, match="exists already: choose another name, or remove it"):
            check_file_writable(tmp_path / name)
