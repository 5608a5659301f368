"""Damage done to a file: `python -m fuzz.damage FILE HOW`, with `HOW` as in a failing call's command line."""

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

GARBAGE = bytes(range(256)) * 16
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghi"))
JSON_VALUES = ["null", "[]", "{}", "0", '"x"', "[[[[]]]]", "NaN", "1e999", "{" * 5000, "[" * 100000, '{"format": 1}']
# What a value inside a JSON or YAML file is exchanged for.
INNER = [
    None,
    [],
    {},
    -1,
    0,
    10**9,
    10**30,
    1e308,
    "",
    "x" * 5000,
    "../../x",
    "\x1b[31m",
    [[]],
    True,
    float("nan"),
    "~",
]


def _cut(path: Path, number: int) -> None:
    size = path.stat().st_size
    os.truncate(path, [0, 1, size // 2, max(size - 1, 0), size // 10][number % 5])


def _flip(path: Path, number: int) -> None:
    content = bytearray(path.read_bytes())
    for step in range(1 + number % 4):
        place = number * 7919 * (step + 1) % max(len(content), 1)
        # Where formats keep their lengths and names is near the beginning and the end.
        place = [place, place % 300, -1 - place % 300][number % 3] if len(content) > 300 else place
        if content:
            content[place] ^= 1 << (number + step) % 8
    path.write_bytes(bytes(content))


def _replace(content: Callable[[int], bytes]) -> Callable[[Path, int], None]:
    return lambda path, number: void(path.write_bytes(content(number)))


def _insert(path: Path, number: int) -> None:
    content = path.read_bytes()
    place = number * 104729 % (len(content) + 1)
    path.write_bytes(content[:place] + GARBAGE[number % 256 :][: 1 + number % 40] + content[place:])


def _link(target: str) -> Callable[[Path, int], None]:
    def link(path: Path, number: int) -> None:
        path.unlink()
        path.symlink_to(target)

    return link


def _fifo(path: Path, number: int) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(path: Path, number: int) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


def _folder(path: Path, number: int) -> None:
    path.unlink()
    path.mkdir()


def _huge(path: Path, number: int) -> None:
    os.truncate(path, [1 << 27, 1 << 33, 1 << 40][number % 3])  # sparse: holds nothing


def _swap(path: Path, number: int) -> None:
    """Take the content of another file of the same folder."""
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    if others:
        shutil.copyfile(others[number % len(others)], path)


def _inner(path: Path, number: int) -> None:
    """Exchange one value inside JSON or YAML; other files are cut."""
    import yaml

    if path.suffix not in (".json", ".yaml"):
        return _cut(path, number)
    content = yaml.safe_load(path.read_text())
    places = list(_places(content))
    holder, key = places[number % len(places)]
    holder[key] = INNER[number // len(places) % len(INNER)]
    path.write_text(json.dumps(content))


def _places(value):
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _word(path: Path, number: int) -> None:
    """Exchange one cell of a table or one word of a text."""
    words = path.read_bytes().split(b",")
    odd = [b"", b"nan", b"-1", b"99999999999999999999", b"x" * 5000, b"\xff\xfe", b"\0", b'"', b"\n", b"=1+1", b"1e999"]
    words[number % len(words)] = odd[number % len(odd)]
    path.write_bytes(b",".join(words))


def _missing(path: Path, number: int) -> None:
    path.unlink()


def void(_: object) -> None:
    """Forget a result."""


HOWS: dict[str, Callable[[Path, int], None]] = {
    "missing": _missing,
    "cut": _cut,
    "flip": _flip,
    "insert": _insert,
    "inner": _inner,
    "word": _word,
    "swap": _swap,
    "garbage": _replace(lambda number: GARBAGE[number % 256 :]),
    "zeros": _replace(lambda number: b"\0" * (1 + number % 100000)),
    "json": _replace(lambda number: JSON_VALUES[number % len(JSON_VALUES)].encode()),
    "bomb": _replace(lambda number: BOMB.encode()),
    "text": _replace(lambda number: ["\ufeff", "é" * 9999, "\u202e", "a,b\n1", "\r\n" * 9999][number % 5].encode()),
    "endless": _link("/dev/zero"),
    "null": _link("/dev/null"),
    "loop": _link("loop"),
    "outside": _link("/etc/passwd"),
    "fifo": _fifo,
    "socket": _socket,
    "folder": _folder,
    "huge": _huge,
}


def damage(path: Path, how: str) -> None:
    """Damage a file as `how`, such as "flip-17", says."""
    kind, _, number = how.partition("-")
    HOWS[kind](path, int(number or 0))
    if kind == "loop":
        path.unlink()
        path.symlink_to(path.name)


if __name__ == "__main__":
    damage(Path(sys.argv[1]), sys.argv[2])
