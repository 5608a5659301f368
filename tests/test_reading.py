"""No file from outside can make a program wait, fill its memory or run anything."""

import os
import time
from pathlib import Path

import pytest

from paucal.reading import is_regular, parse_json, parse_yaml, read_bytes, read_text, require_regular
from paucal.types import UserError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def pipe(tmp_path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_read_bytes__takes_files_up_to_a_bound(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UserError, match="has more than 4 bytes"):
        read_bytes(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none", 4)


def test_read_text__neither_waits_for_a_pipe_nor_reads_a_device(pipe, tmp_path):
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in (pipe, tmp_path / "endless", tmp_path):
        with pytest.raises(UserError, match="is no regular file"):
            read_text(path, 10)
        with pytest.raises(UserError, match="is no regular file"):
            require_regular(path)
        assert not is_regular(path)


def test_is_regular__of_paths_that_cannot_be_looked_at(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert not is_regular(tmp_path / "loop")
    assert not is_regular("a\0b")
    assert not is_regular("n" * 5000)


def test_parse_yaml__refuses_aliases_at_once():
    assert len(BOMB) < 600
    begin = time.monotonic()
    with pytest.raises(ValueError, match=r"repeats a value by an alias \(\*a\), which is not followed.*at line 2"):
        parse_yaml(BOMB)
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\nb: 2", "it is no valid YAML at line 2, column 5"),
        ("!!python/object/apply:os.system ['true']", "something other than plain values at line 1, column 1"),
        ("!!int ''", "a value in it is no valid YAML"),
        ("a: " + "9" * 5000, "a value in it is no valid YAML"),
        ("[" * 5000, "it is nested too deeply"),
        ("a: \x1b", "a value in it is no valid YAML"),
    ],
)
def test_parse_yaml__says_what_is_wrong_without_jargon(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n"b"}', "it is no valid JSON at line 2, column 4"),
        ("[" * 200_000, "it is nested too deeply"),
        ("9" * 5000, "a number in it is too long"),
        (b"\xff\xfe\xff", "it is no text"),
    ],
)
def test_parse_json__says_what_is_wrong_without_jargon(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)
