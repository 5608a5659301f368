"""Layouts of boxes that are known by their looks and not read, so that they can be called by their names."""

import re
from typing import NamedTuple

from paucal.data.boxes.tree import Tree, plain

HEAD = 1 << 16  # bytes at the beginning and at the end that are looked at
LOOKED_AT = 20  # files of a kind
_NUMBER = rb"-?\d+(?:\.\d+)?(?:e-?\d+)?[ \t]*"
_KITTI = rb"\A\s*[A-Za-z]\w*[ \t]+(?:" + _NUMBER + rb"){14,15}(?:\r?\n|\Z)"
_DOTA = rb"(?:\A|\n)(?:" + _NUMBER + rb"){8}[A-Za-z][\w-]*[ \t]+[0-3][ \t\r]*(?:\n|\Z)"


class Unread(NamedTuple):
    """A layout that is not read.

    Attributes:
        name: Name of the program or set that writes it so.
        suffixes: Endings of its files.
        pattern: What is in its files.
    """

    name: str
    suffixes: tuple[str, ...]
    pattern: re.Pattern[bytes]


def _entries(*names: str) -> re.Pattern[bytes]:
    return re.compile("".join(f'(?=.*"{name}"\\s*:)' for name in names).encode(), re.DOTALL)


UNREAD: tuple[Unread, ...] = (
    Unread("the VGG Image Annotator (VIA)", (".json",), _entries("shape_attributes")),
    Unread("the VGG Image Annotator (VIA)", (".csv",), re.compile(rb"region_shape_attributes")),
    Unread("Label Studio", (".json",), re.compile(rb'"(?:rectanglelabels|polygonlabels|brushlabels)"\s*:')),
    Unread("Supervisely", (".json",), _entries("objects", "classTitle")),
    Unread("Create ML", (".json",), _entries("annotations", "coordinates", "label")),
    Unread("Datumaro", (".json",), _entries("items", "annotations", "bbox", "label_id")),
    Unread("BDD100K", (".json",), _entries("labels", "box2d")),
    Unread("SageMaker Ground Truth", (".manifest", ".jsonl"), re.compile(rb'"source-ref"\s*:')),
    Unread("TensorFlow's records", (".tfrecord", ".record", ".tfrecords"), re.compile(b"")),
    Unread("KITTI", (".txt",), re.compile(_KITTI)),
    Unread("DOTA", (".txt",), re.compile(_DOTA)),
    Unread("VisDrone", (".txt",), re.compile(rb"\A\s*(?:\d+,){7}\d+,?\s*(?:\r?\n|\Z)")),
)


def find_unread(tree: Tree) -> tuple[str, str] | None:
    """Return a file of boxes that are not read, and who writes them so; None where there is none."""
    for one in UNREAD:
        for file in tree.ending(*one.suffixes)[:LOOKED_AT]:
            if one.pattern.search(plain(tree.peek(file, HEAD))):
                return file, one.name
    return None
