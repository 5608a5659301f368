"""Files from outside, found and read so that none can stop a program: regular ones only, never more than a bound.

A pipe would be waited for without end, a device has no end, and a few hundred bytes of YAML can stand for gigabytes
where aliases of aliases are followed.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from paucal.types import UserError

_NOT_REGULAR = "{!r} is no regular file (a folder, a pipe or a device): give a file."
MOST_CONFIG_BYTES = 1 << 20  # YAML takes some ten seconds for each MiB


def named_path(text: str, flag: str = "--output") -> Path:
    """Return the path that a flag names, with `~` replaced by the home folder.

    Raises:
        UserError: it is empty, cannot be a path, or names the home folder of nobody.
    """
    if not text.strip():
        raise UserError(f"{flag} is empty: give a path, or leave {flag} out.")
    if "\0" in text:
        raise UserError(f"{flag} is {text[:80]!r}, and no path holds a null byte: give another.")
    expanded = os.path.expanduser(text)  # pathlib's raises where there is no such user
    if text.startswith("~") and expanded == text:
        raise UserError(
            f"{flag} is {text[:80]!r}, and there is no such user: give a path, or ./~... for that very name."
        )
    return Path(expanded)


def is_regular(path: str | Path) -> bool:
    """Whether a path leads to a file with an end; False for what cannot be looked at (links in a circle, odd names)."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, most: int) -> bytes:
    """Read a whole file.

    Args:
        path: of the file.
        most: bytes it may have.

    Raises:
        UserError: it is a pipe, a device or the like, or has more bytes.
        OSError: it is not there, or cannot be read.
    """
    # Without a writer a pipe would block already when opened; the flag means nothing to regular files.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(_NOT_REGULAR.format(str(path)))
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{str(path)!r} has more than {most:,} bytes, the most that are read of such a file.")
    return content


def read_text(path: Path, most: int, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read a whole text file; `UnicodeDecodeError` where it is none, else as `read_bytes`."""
    return read_bytes(path, most).decode(encoding, errors)


def require_regular(path: Path) -> Path:
    """Return the path of a file that a library is going to open; one that is missing passes, to be missed there.

    Raises:
        UserError: it is a pipe, a device or the like, which the library would wait for.
    """
    if os.path.exists(path) and not is_regular(path):
        raise UserError(_NOT_REGULAR.format(str(path)))
    return path


def parse_yaml(text: str, as_text: bool = False) -> Any:
    """Return what YAML says, in plain types.

    Args:
        text: YAML.
        as_text: Whether all values but empty ones stay text: what `10`, `010`, `1:30` and `off` mean is known by who
            expects a text, a number or true and false. A key that occurs twice is then refused.

    Raises:
        ValueError: it is not valid, or holds aliases or objects; the message says what and where, without jargon.
    """
    try:
        return yaml.load(text, Loader=_TextLoader if as_text else _PlainLoader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{_what(problem)}{where}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as problem:  # its constructors raise nearly anything for odd values, such as "!!int ''"
        raise ValueError("a value in it is no valid YAML") from problem


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says.

    Raises:
        ValueError: it is not valid; the message says where.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise ValueError(f"it is no valid JSON at line {problem.lineno}, column {problem.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is no text") from None
    except ValueError:
        raise ValueError("a number in it is too long") from None


class _AliasError(yaml.MarkedYAMLError):
    """An alias, which could stand for gigabytes."""


class _RepeatedKeyError(yaml.MarkedYAMLError):
    """A key that occurs twice, of which YAML takes the last."""


class _PlainLoader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise _AliasError(
                problem=f"it repeats a value by an alias (*{event.anchor})", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)


class _TextLoader(_PlainLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 (as PyYAML declares it)
        first: [(tag, pattern) for tag, pattern in pairs if tag.endswith(":null")]
        for first, pairs in _PlainLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        known = set()
        for key, _ in node.value:
            if key.value in known:
                raise _RepeatedKeyError(problem=f"it has {key.value!r} twice", problem_mark=key.start_mark)
            known.add(key.value)
        return super().construct_mapping(node, deep)


def _what(problem: yaml.MarkedYAMLError) -> str:
    if isinstance(problem, _RepeatedKeyError):
        return str(problem.problem)
    if isinstance(problem, _AliasError):
        return f"{problem.problem}, which is not followed: write the value out,"
    if isinstance(problem, yaml.constructor.ConstructorError):
        return "it holds something other than plain values"
    return "it is no valid YAML"
