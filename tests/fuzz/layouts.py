"""Folders of data of many layouts, most of them odd: `python -m fuzz.layouts FOLDER NAME` makes one."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from cli.calls import make_photos
from fuzz.damage import GARBAGE

STRANGE_NAMES = [
    "-rf",
    "a b",
    "a\nb",
    "\x1b[31m",
    ":smile:",
    "[red]",
    "東京",
    "e\u0301",
    "\udcff",
    "x" * 250,
    "~",
    "%s",
    "'",
]
STRANGE_NAMES += [
    "class0 ",
    ".hidden",
    "train",
    "con",
    "a,b",
    '"',
    "=1+1",
    "\u202eabc",
    "*",
    "[a]",
    "a;b",
    "\\",
    "$HOME",
]


def _photos(root: Path, number: int) -> Path:
    return make_photos(root, classes=3, each=6, seed=number)


def _empty(root: Path, number: int) -> None:
    root.mkdir()


def _plain(root: Path, number: int) -> None:
    _photos(root, number)


def _flat(root: Path, number: int) -> None:
    other = _photos(root.with_name(f"{root.name}-other"), number)
    shutil.move(other / "class0", root)
    shutil.rmtree(other)


def _deep(root: Path, number: int) -> None:
    _photos(root / "/".join(["d" * 20] * (1 + number % 40)), number)


def _parts(root: Path, number: int) -> None:
    names = [
        ("train", "val"),
        ("train", "test"),
        ("TRAIN", "Val", "TEST"),
        ("val", "test"),
        ("train", "other"),
        ("test",),
    ]
    for part in names[number % len(names)]:
        _photos(root / part, number)
    if number % 3 == 0:
        _photos(root / "class9", number)


def _empty_class(root: Path, number: int) -> None:
    _photos(root, number)
    (root / "empty").mkdir()


def _few(root: Path, number: int) -> None:
    make_photos(root, classes=1 + number % 3, each=1 + number % 4)


def _with_image(name: str, content: Callable[[int], bytes]) -> Callable[[Path, int], None]:
    def make(root: Path, number: int) -> None:
        _photos(root, number)
        (root / "class1" / name).write_bytes(content(number))

    return make


def _cut_image(root: Path, number: int) -> None:
    _photos(root, number)
    os.truncate(root / "class1" / "3.png", number * 37 % 1200)


def _flipped_image(root: Path, number: int) -> None:
    _photos(root, number)
    file = root / "class1" / "3.png"
    content = bytearray(file.read_bytes())
    content[number * 7919 % len(content)] ^= 1 << number % 8
    file.write_bytes(content)


def _sizes(root: Path, number: int) -> None:
    _photos(root, number)
    size = [(1, 1), (1, 3000), (3000, 1), (20000, 2), (9000, 9000), (2, 2)][number % 6]
    Image.new("L", size).save(root / "class1" / "odd.png")


def _modes(root: Path, number: int) -> None:
    _photos(root, number)
    modes = ["1", "L", "P", "LA", "RGBA", "I;16", "I", "CMYK", "F"]
    mode = modes[number % len(modes)]
    suffix = "tif" if mode in ("CMYK", "F", "I") else "png"
    Image.fromarray(np.full((9, 9), 3, np.uint8)).convert(mode).save(root / "class1" / f"odd.{suffix}")


def _animated(root: Path, number: int) -> None:
    _photos(root, number)
    frames = [Image.new("RGB", (9, 9), (value, 0, 0)) for value in (0, 99, 200)]
    frames[0].save(root / "class1" / "odd.gif", save_all=True, append_images=frames[1:])


def _named(root: Path, number: int) -> None:
    _photos(root, number)
    name = STRANGE_NAMES[number % len(STRANGE_NAMES)]
    if number // len(STRANGE_NAMES) % 2:
        (root / "class1").rename(root / name)
    else:
        (root / "class1" / "3.png").rename(root / "class1" / f"{name[:240]}.png")


def _node(make: Callable[[Path], object], name: str = "odd.png") -> Callable[[Path, int], None]:
    def place(root: Path, number: int) -> None:
        _photos(root, number)
        make([root / "class1" / name, root / name, root / "class9"][number % 3])

    return place


def _list(root: Path, number: int) -> None:
    """Make a list beside images, with one odd line."""
    _photos(root, number)
    lines = [f"class{label}/{index}.png {label}" for label in range(3) for index in range(6)]
    odd = [
        "",
        "class0/0.png",
        "class0/0.png -1",
        "class0/0.png 99999999999",
        "../../etc/passwd.png 0",
        "/dev/zero.png 1",
    ]
    odd += ["class0/0.png 0 0", "\0", "x" * 100000, "\udcff.png 1", "class0/0.png 2", "none.png 0", "\x1b[31m.png 1"]
    lines.insert(number % 5, odd[number % len(odd)])
    name = ["list.txt", "train.txt", "real_train.txt"][number % 3]
    (root / name).write_text("\n".join(lines), errors="surrogateescape")


def _hidden(root: Path, number: int) -> None:
    _photos(root / ".git" / "x", number)
    root.joinpath("Thumbs.db").write_bytes(GARBAGE)


LAYOUTS: dict[str, Callable[[Path, int], None]] = {
    "empty": _empty,
    "plain": _plain,
    "flat": _flat,
    "deep": _deep,
    "parts": _parts,
    "empty_class": _empty_class,
    "few": _few,
    "cut": _cut_image,
    "flipped": _flipped_image,
    "sizes": _sizes,
    "modes": _modes,
    "animated": _animated,
    "named": _named,
    "list": _list,
    "hidden": _hidden,
    "garbage": _with_image("odd.jpg", lambda number: GARBAGE[number % 256 :]),
    "text": _with_image("notes.txt", lambda number: b"notes"),
    "svg": _with_image("odd.png", lambda number: b"<svg xmlns='x'><image href='file:///etc/passwd'/></svg>"),
    "eps": _with_image("odd.png", lambda number: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
    "nothing": _with_image("odd.png", lambda number: b""),
    "fifo": _node(os.mkfifo),
    "loop": _node(lambda path: path.symlink_to(path.name)),
    "parent": _node(lambda path: path.symlink_to(".."), "up"),
    "endless": _node(lambda path: path.symlink_to("/dev/zero")),
    "outside": _node(lambda path: path.symlink_to("/etc/passwd")),
    "dangling": _node(lambda path: path.symlink_to("/none")),
    "folder": _node(lambda path: path.mkdir()),
    "huge": _node(lambda path: (path.touch(), os.truncate(path, 1 << 40))),
}


def make_layout(root: Path, name: str) -> None:
    """Make a folder as `name`, such as "parts-3", says."""
    kind, _, number = name.partition("-")
    LAYOUTS[kind](root, int(number or 0))


if __name__ == "__main__":
    make_layout(Path(sys.argv[1]), sys.argv[2])
