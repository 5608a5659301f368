"""No file from outside can make a program wait, fill its memory or run anything."""

import os
import time
from pathlib import Path

import pytest

from paucal.reading import (
    decode_text,
    is_regular,
    parse_json,
    parse_yaml,
    read_bytes,
    read_decoded,
    read_text,
    require_regular,
)
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
    with pytest.raises(UserError, match="is larger than 4 bytes"):
        read_bytes(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none", 4)


def test_read_text__neither_waits_for_a_pipe_nor_reads_a_device(pipe, tmp_path):
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in (pipe, tmp_path / "endless", tmp_path):
        with pytest.raises(UserError, match="is not a regular file"):
            read_text(path, 10)
        with pytest.raises(UserError, match="is not a regular file"):
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
    with pytest.raises(ValueError, match=r"repeats a value by an alias \(\*a\), which is not supported.*at line 2"):
        parse_yaml(BOMB)
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\nb: 2", r"it is not valid YAML at line [23], column \d"),
        ("!!python/object/apply:os.system ['true']", "not a plain text, number, list or mapping at line 1, column 1"),
        ("!!int ''", "a value is not valid YAML"),
        ("a: " + "9" * 5000, "a value is not valid YAML"),
        ("[" * 200 + "]" * 200, "it is nested too deeply at line 1, column 101"),
        ("- " * 5000, "it is nested too deeply"),
        ("[" * 5000, "it is not valid YAML"),
        ("a: \x1b", "a value is not valid YAML"),
    ],
)
def test_parse_yaml__says_what_is_wrong_without_jargon(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n"b"}', "it is not valid JSON at line 2, column 4"),
        ("[" * 200_000, "it is nested too deeply"),
        ("9" * 5000, "a number has too many digits"),
        (b"\xff\xfe\xff", "it is not text"),
    ],
)
def test_parse_json__says_what_is_wrong_without_jargon(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


WESTERN = "Kätzchen,Hündchen\nÎle d’Oléron créée, 10 µm², 5°C «Élan», þýða,señor ¿qué? “é” hääyöaie, à\n"  # noqa: RUF001


@pytest.mark.parametrize(
    "encoding",
    [
        *("utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"),
        *("bom utf-16-be", "bom utf-32-be", "twice utf-8"),
    ],
)
@pytest.mark.parametrize("text", [WESTERN, "image,label\n1.png,猫\n2.png,кошка\n", "a", "ab", "abc", "abcd", "一,b"])
def test_decode_text__reads_what_says_its_encoding(tmp_path, encoding, text):
    marks = {"bom": "\ufeff", "twice": "\ufeff\ufeff"}.get(encoding.split()[0], "")
    (tmp_path / "labels.csv").write_bytes((marks + text).encode(encoding.split()[-1]))
    assert read_decoded(tmp_path / "labels.csv", 10_000)._replace(encoding="") == (text, "", "")


def test_decode_text__takes_western_text_for_windows_1252_and_says_so():
    found = decode_text(WESTERN.encode("cp1252"), "some/labels.csv")
    assert (found.text, found.encoding) == (WESTERN, "cp1252")
    assert found.note.startswith(
        "labels.csv is not UTF-8 and was read as Windows-1252 (Kätzchen, Hündchen, Île): save it as UTF-8"
    )


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        *(("żółw, Łódź", "cp1250"), ("кошка", "cp1251"), ("кот", "cp1251"), ("γάτα", "cp1253"), ("قط", "cp1256")),
        *(
            ("小猫和小狗", "gbk"),
            ("ねこ", "shift_jis"),
            ("고양이", "cp949"),
            ("Kätzchen", "cp850"),
            ("Kätzchen", "mac_roman"),
        ),
    ],
)
def test_decode_text__refuses_other_encodings(text, encoding):
    with pytest.raises(UserError, match=r"labels.csv is not UTF-8 text \(see line 2\), .*: save it as UTF-8\.$"):
        decode_text(b"image,label\n" + text.encode(encoding), "labels.csv")
    assert decode_text(text.encode(encoding), "x.xml", declared=encoding).text == text


def test_decode_text__refuses_a_mixture_and_broken_utf_16():
    for content in (b"\xc3\xa4\nK\xe4tzchen", b"\xff\xfea", b"cat\xe4\0dog!", b"\x89PNG\r\n\x1a\n\0"):
        with pytest.raises(UserError, match="is not UTF-8 text"):
            decode_text(content, "labels.csv")


def test_decode_text__passes_over_a_declared_encoding_that_is_unknown_or_contradicts_the_mark():
    assert decode_text("猫".encode(), "x", declared="no-such").text == "猫"
    assert decode_text("猫".encode(), "x", declared="ascii").text == "猫"
    assert decode_text("猫".encode("utf-16"), "x", declared="gbk").text == "猫"
