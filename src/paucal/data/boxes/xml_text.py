"""XML files of annotations: bounded, in any encoding that Python knows, and without entities."""

import re
from xml.etree import ElementTree
from xml.parsers import expat

from paucal.data.boxes.tree import Tree, plain
from paucal.reading import decode_text
from paucal.types import UserError

XML = ".xml"
MOST_BYTES = 1 << 28  # CVAT's file of all images; of one image some kilobytes are usual
_HEAD = 1 << 13  # bytes that hold the name of the root
_DECLARED = re.compile(rb"<\?xml[^>]*\sencoding\s*=\s*[\"']([A-Za-z0-9._:-]+)[\"']")
_WIDE = ("utf-16", "utf16", "utf-32", "utf32", "ucs", "iso-10646")
_ROOT = re.compile(rb"<([A-Za-z_][\w.:-]*)")


def root_name(tree: Tree, file: str) -> str:
    """Return the name of the outermost element of a file; "" where it cannot be seen."""
    found = _ROOT.search(plain(tree.peek(file, _HEAD)))
    return found[1].decode() if found else ""


def parse_xml(tree: Tree, file: str) -> tuple[ElementTree.Element, str]:
    """Parse a bounded XML file whose text means what it says: without entities, which could stand for gigabytes.

    Returns:
        The outermost element, and a note where the encoding was assumed.

    Raises:
        UserError: The file is too large, is no XML, or declares a document type.
    """
    place = tree.place_of(file)
    content = tree.read(file, MOST_BYTES)
    if not plain(content).strip():
        raise UserError(f"{place!r} is no XML (it is empty): give annotations as XML.")
    found = _DECLARED.match(content.lstrip())
    declared = found[1].decode() if found else None
    if declared is not None and declared.lower().startswith(_WIDE):
        declared = None  # what was found byte by byte is not written so
    text = decode_text(content, place, declared)
    builder, parser = ElementTree.TreeBuilder(), expat.ParserCreate("utf-8")

    def refuse(*_: object) -> None:
        raise UserError(f"{place!r} declares a document type, which annotations have no need of: remove it.")

    def end(name: str) -> None:
        builder.end(name)

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda data: builder.data(data)
    try:
        parser.Parse(text.text.encode(errors="surrogatepass"), True)
        return builder.close(), text.note
    except (expat.ExpatError, ValueError, AssertionError) as problem:
        raise UserError(f"{place!r} is no XML ({problem}): give annotations as XML.") from None
