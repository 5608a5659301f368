"""Read untrusted files so that no file can block the program: only regular files are read, up to a size limit.

Reading a pipe could wait forever, reading a device could never end, and a few hundred bytes of YAML with nested aliases
can expand to gigabytes.
"""

import codecs
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from paucal.types import UserError

_NOT_REGULAR_MESSAGE = "{!r} is not a regular file (a folder, a pipe or a device): give a file."
MAX_CONFIG_BYTES = 1 << 20  # size limit of config files
MAX_YAML_DEPTH = 100  # largest number of levels of nested lists and mappings
_BOM = "\ufeff"
_BYTE_ORDER_MARKS = (  # UTF-32 comes before UTF-16, since the UTF-32-LE mark begins with the UTF-16-LE mark
    *((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be")),
    *((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")),
)
# Character sequences that do not occur in western text. A file that contains such a sequence after it is decoded as
# Windows-1252 has another encoding. The comments below name encodings whose bytes produce each sequence.
_ACCENTED, _SIGNS = "À-ÖØ-öø-ÿŠŽŒŸšžœƒ", "¡-©«-¬®-³µ-¶¸-¿×÷‚„†‡ˆ‰‹›“”˜¦"  # noqa: RUF001
_NOT_WESTERN = re.compile(
    r"[^\x00-\xa0]{4}"  # Cyrillic, Greek, Chinese
    rf"|(?<![A-Za-z{_ACCENTED}])[{_ACCENTED}]{{2,}}(?![A-Za-z{_ACCENTED}])"
    rf"|[{_ACCENTED}][¡-¬®-¶¸-º¼-¿]"  # UTF-8  # noqa: RUF001
    rf"|[A-Za-z{_ACCENTED}][{_SIGNS}][A-Za-z{_ACCENTED}]"  # central Europe, DOS
    r"|[A-Za-zß-ÿ][À-ÖØ-ÝŠŽŒŸ][a-zß-ÿ]"  # Macintosh
    r"|[\x00-\x08\x0e-\x1f]"
)


def expand_user_path(text: str, flag: str = "--output") -> Path:
    """Return the path that a user gave for `flag`, with `~` replaced by the home folder."""
    if not text.strip():
        raise UserError(f"{flag} is empty: give a path, or leave {flag} out.")
    if "\0" in text:
        raise UserError(f"{flag} is {text[:80]!r}, but a path cannot contain a null byte: give another path.")
    if flag in ("--output", "OUT") and "://" in text:  # otherwise a folder called "s3:" would be created
        raise UserError(f"{flag} is {text[:80]!r}, a URL, but this call writes to this machine: give a path.")
    expanded = os.path.expanduser(text)  # `Path.expanduser` raises an error for an unknown user
    if text.startswith("~") and expanded == text:
        raise UserError(
            f"{flag} is {text[:80]!r}, but there is no such user: give a path, or ./~... for a file of this name."
        )
    return Path(expanded)


def is_regular(path: str | Path) -> bool:
    """Return whether a path is a regular file; False if the path cannot be checked (circular links, invalid names)."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a file of at most `max_bytes` bytes; raise a UserError for larger files, pipes and devices."""
    # Without O_NONBLOCK, opening a pipe that nobody writes to would block. Regular files ignore this flag.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(_NOT_REGULAR_MESSAGE.format(str(path)))
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UserError(f"{str(path)!r} is larger than {max_bytes:,} bytes, the limit for such files.")
    return content


def read_text(path: Path, max_bytes: int, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read a text file of at most `max_bytes` bytes; raise `UnicodeDecodeError` if the encoding does not fit."""
    return read_bytes(path, max_bytes).decode(encoding, errors)


class DecodedText(NamedTuple):
    """Text of a file, and how it was decoded."""

    text: str  # text without byte order marks
    encoding: str  # name of the encoding in Python's spelling
    note: str  # sentence that tells the user which encoding was assumed; "" if the encoding was recognised


def read_decoded(path: Path, max_bytes: int) -> DecodedText:
    """Read a text file of at most `max_bytes` bytes, as `read_bytes` and `decode_text` do."""
    return decode_text(read_bytes(path, max_bytes), str(path))


def decode_text(content: bytes, name: str, declared: str | None = None) -> DecodedText:
    """Decode the bytes of a text file that a user may have written with any program; messages call it `name`.

    UTF-8, UTF-16 and UTF-32 are recognised, with or without a byte order mark. Any other content is decoded as
    Windows-1252 (the western encoding that Excel writes), with a note for the user. Content whose decoded text does not
    look western is refused. `declared` is the encoding that the file itself names, as XML files do; it is tried first
    if there is no byte order mark.
    """
    marked = next((encoding for mark, encoding in _BYTE_ORDER_MARKS if content.startswith(mark)), None)
    for encoding in filter(None, (marked,) if marked else (declared, _detect_wide_encoding(content), "utf-8")):
        try:
            text = content.decode(encoding).lstrip(_BOM)
        except (UnicodeError, LookupError):
            continue
        if text or encoding == "utf-8":  # a file with only a UTF-16 or UTF-32 mark does not count as empty text
            return DecodedText(text, encoding, "")
    text = content.removeprefix(codecs.BOM_UTF8).decode("cp1252", errors="replace")
    text = text if marked in (None, "utf-8") else ""
    if not text or _NOT_WESTERN.search(text) or "\ufffd" in text:
        line = 1
        try:
            content.decode()
        except UnicodeDecodeError as problem:
            line = content.count(b"\n", 0, problem.start) + 1
        raise UserError(f"{name} is not UTF-8 text (see line {line}), and its encoding is unknown: save it as UTF-8.")
    non_ascii_words = dict.fromkeys(re.findall(r"[^\W\d_]*[^\x00-\x7f][^\W\d_]*", text))
    examples = ", ".join(list(non_ascii_words)[:3])
    note = (
        f"{Path(name).name} is not UTF-8 and was read as Windows-1252 ({examples}): save it as UTF-8 if that is wrong"
    )
    return DecodedText(text, "cp1252", note)


def _detect_wide_encoding(content: bytes) -> str | None:
    """Return the encoding of UTF-16 or UTF-32 text without a byte order mark; None for other bytes.

    UTF-16 and UTF-32 have zero bytes beside each ASCII character; other text has no zero bytes.
    """
    zeros = [content[index::4].count(0) for index in range(4)]
    if not any(zeros) or len(content) % 2:
        return None
    if len(content) % 4 == 0 and len(content) // 2 in (zeros[0] + zeros[1], zeros[2] + zeros[3]):
        return "utf-32-be" if zeros[0] + zeros[1] > zeros[2] + zeros[3] else "utf-32-le"
    return "utf-16-be" if zeros[0] + zeros[2] > zeros[1] + zeros[3] else "utf-16-le"


def require_regular(path: Path) -> Path:
    """Return a path unchanged; raise a UserError if the path exists and is not a regular file."""
    if os.path.exists(path) and not is_regular(path):
        raise UserError(_NOT_REGULAR_MESSAGE.format(str(path)))
    return path


def parse_yaml(text: str, as_text: bool = False) -> Any:
    """Parse YAML text into dicts, lists and scalars; a ValueError says what is wrong and where. Aliases are refused.

    With `as_text`, all values except empty ones are returned as text, since only the caller knows whether `10`, `010`,
    `1:30` and `off` are text, numbers or booleans. Repeated keys are then refused.
    """
    try:
        _check_structure(text)
        return yaml.load(text, Loader=_TextLoader if as_text else _Loader)
    except yaml.MarkedYAMLError as problem:
        if isinstance(problem, _RefusedYAML):
            reason = str(problem.problem)
        elif isinstance(problem, yaml.constructor.ConstructorError):
            reason = "it has a value that is not a plain text, number, list or mapping"
        else:
            reason = "it is not valid YAML"
        mark = problem.problem_mark
        position = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{reason}{position}") from None
    except Exception as problem:  # YAML's constructors raise many types for odd values, such as "!!int ''"
        raise ValueError("a value is not valid YAML") from problem


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text into dicts, lists and scalars; a ValueError says what is wrong and, if possible, where."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise ValueError(f"it is not valid JSON at line {problem.lineno}, column {problem.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    except ValueError:
        raise ValueError("a number has too many digits") from None


class _RefusedYAML(yaml.MarkedYAMLError):
    """Valid YAML that is refused: an alias (which could expand to gigabytes), deep nesting, or a repeated key."""


# The loader of libyaml is ten times as fast as PyYAML's own, and is part of PyYAML's usual builds.
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _check_structure(text: str) -> None:
    """Raise an error for aliases, and for nesting so deep that the loader could exhaust the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            reason = f"it repeats a value by an alias (*{event.anchor}), which is not supported: write the value out,"
            raise _RefusedYAML(problem=reason, problem_mark=event.start_mark)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_YAML_DEPTH:
                raise _RefusedYAML(problem="it is nested too deeply", problem_mark=event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _TextLoader(_Loader):
    """Loader that keeps all values except empty ones as text, and refuses repeated keys."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (as PyYAML declares it)
        first: [(tag, pattern) for tag, pattern in pairs if tag.endswith(":null")]
        for first, pairs in _Loader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if key.value in keys:
                raise _RefusedYAML(problem=f"the key {key.value!r} occurs twice", problem_mark=key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)
