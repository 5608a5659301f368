"""Make untrusted text (names of files and classes, values, messages of libraries) safe to print.

Everything that is printed or raised passes through here, so that other code does not need to: a name can contain codes
that move a terminal's cursor or change its colours, and a value can be as long as a file.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

MAX_WORD, MAX_SENTENCE = 300, 1000  # characters; few paths are longer
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD + 1},}}")
_BYTE = re.compile("[\udc80-\udcff]")
_BREAK = re.compile(r"\s*\n\s*")
_LINE_BREAKS = "\n\t"
# Control codes, characters that hide or reorder text, and line separators. Bytes that are not UTF-8 are surrogates
# and kept, except those that are control codes for an 8-bit terminal.
_UNSHOWN = ("Cc", "Cf", "Zl", "Zp")
_RAW_CONTROLS = range(0xDC80, 0xDCA0)
_JOINERS = "\u200c\u200d"  # joiners of scripts and emoji, which belong to names


def showable(text: str) -> str:
    r"""Return text with control characters as escapes; line breaks and tabs are kept.

    Example:
        >>> showable("cat\x1b[31m.png")
        'cat\\x1b[31m.png'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(character) if _is_hidden(character) else character for character in text)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun; give the plural in `many` unless it only adds an "s".

    Example:
        >>> counted(1, "step"), counted(2000, "step"), counted(0, "class", "classes")
        ('1 step', '2000 steps', '0 classes')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def images_text(images: int, groups: int | None, noun: str = "image") -> str:
    """Return the number of images, with that of their groups if there are any.

    Example:
        >>> images_text(400, None), images_text(400, 37), images_text(1, 1, "test image")
        ('400 images', '400 images in 37 groups', '1 test image in 1 group')
    """
    return counted(images, noun) + ("" if groups is None else f" in {counted(groups, 'group')}")


def was(count: int) -> str:
    """Return "was" for a count of 1, else "were"."""
    return "was" if count == 1 else "were"


def first_few(names: Sequence[str], count: int = 5) -> str:
    """Return the first names, separated by commas, and dots if there are more.

    Example:
        >>> first_few(["cat", "dog", "elk"], 2), first_few(["cat"], 2)
        ('cat, dog, ...', 'cat')
    """
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def shortened(text: str, length: int = MAX_SENTENCE) -> str:
    """Return text shortened to at most `length` characters: the beginning, three dots and the end.

    Example:
        >>> shortened("a" * 500, 20)
        'aaaaaaaaaaaa ... aaa'
    """
    if len(text) <= length:
        return text
    begin = (length * 2) // 3 - 1
    return f"{text[:begin]} ... {text[len(text) - (length - begin - 5) :]}"


def brief(value: object) -> str:
    """Return a value from outside as Python writes it, shortened for a message."""
    return shortened(repr(value), 80)


def sentence(text: str) -> str:
    r"""Return a message in one line, with control characters as escapes and long values shortened.

    Example:
        >>> sentence("expected a number,\n  got \x1b[1m")
        'expected a number, got \\x1b[1m'
        >>> sentence("no image: cat\udce3.png")  # a byte of a name that is not UTF-8
        'no image: cat\\xe3.png'
    """
    line = _BREAK.sub(" ", text.strip())
    line = _LONG_WORD.sub(lambda found: shortened(found[0], MAX_WORD // 2), line)
    return _BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", showable(shortened(line)))


def drawable(text: str) -> str:
    """Return text in which "?" replaces the letters that Pillow's own font lacks."""
    return text.encode("latin-1", errors="replace").decode("latin-1")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the names nearest to a mistyped name, as the end of a sentence; "" if none is near.

    Example:
        >>> did_you_mean("epoch", ["epochs", "lr"])
        ' (did you mean epochs?)'
    """
    near = difflib.get_close_matches(word, list(known), n=2)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def percent(share: float, form: str = ".1f") -> str:
    """Return a share as text.

    Args:
        share: Share from 0 to 1.
        form: Format of the percentage.

    Example:
        >>> percent(0.9123), percent(0.95, "g"), percent(0.4, ".0f")
        ('91.2 %', '95 %', '40 %')
    """
    return f"{100 * share:{form}} %"


def _is_hidden(character: str) -> bool:
    if character in _LINE_BREAKS or character in _JOINERS:
        return False
    return unicodedata.category(character) in _UNSHOWN or ord(character) in _RAW_CONTROLS


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def duration(seconds: float) -> str:
    """Return a duration as text.

    Example:
        >>> [duration(seconds) for seconds in (8, 59.7, 100, 1000, 9000)]
        ['8 s', '1 min', '1 min 40 s', '17 min', '2 h 30 min']
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 600:
        return f"{seconds // 60} min {seconds % 60} s".removesuffix(" 0 s")
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")


def first_line(problem: BaseException) -> str:
    """Return the first line of an error's text, or its type."""
    return str(problem).split("\n")[0].strip() or type(problem).__name__
