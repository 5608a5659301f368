"""Make untrusted text (file names, class names, values, messages of libraries) safe to print, and format numbers.

All messages that are printed or raised pass through this module, because a name can contain codes that move a
terminal's cursor or change its colours, and a value can be as long as a file.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

MAX_WORD_LENGTH, MAX_SENTENCE_LENGTH = 300, 1000  # characters; a path counts as a word and is rarely longer than 300
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_LENGTH + 1},}}")
_SURROGATE = re.compile("[\udc80-\udcff]")
_LINE_BREAK = re.compile(r"\s*\n\s*")
_KEPT_CONTROLS = "\n\t"
# Unicode categories of control codes, of characters that hide or reorder text, and of line separators. Surrogates,
# which stand for bytes that are not UTF-8, are kept unless the byte is a control code for an 8-bit terminal.
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Zl", "Zp")
_CONTROL_SURROGATES = range(0xDC80, 0xDCA0)
_JOINERS = "\u200c\u200d"  # joiners of scripts and emoji, which belong to names


def escape_controls(text: str) -> str:
    r"""Return text with control characters replaced by escapes such as \x1b; line breaks and tabs are kept."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii") if _is_hidden(character) else character for character in text
    )


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `one` is the singular, `many` the plural (by default, `one` with an added "s")."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def images_text(images: int, groups: int | None, noun: str = "image") -> str:
    """Return the number of images as text, followed by the number of groups unless `groups` is None.

    Example:
        >>> images_text(400, None), images_text(400, 37), images_text(1, 1, "test image")
        ('400 images', '400 images in 37 groups', '1 test image in 1 group')
    """
    return counted(images, noun) + ("" if groups is None else f" in {counted(groups, 'group')}")


def was_or_were(count: int) -> str:
    """Return "was" for a count of 1, else "were"."""
    return "was" if count == 1 else "were"


def left_out_notes(count: int, one: str, many: str = "") -> list[str]:
    """Return a list with a note on how many things were left out; the list is empty if `count` is 0.

    Example:
        >>> left_out_notes(2, "image without a mask", "images without masks"), left_out_notes(0, "image")
        (['2 images without masks were left out'], [])
    """
    return [f"{counted(count, one, many)} {was_or_were(count)} left out"] if count else []


def join_first_few(names: Sequence[str], count: int = 5) -> str:
    """Return the first `count` names, separated by commas and followed by "..." if there are more names.

    Example:
        >>> join_first_few(["cat", "dog", "elk"], 2), join_first_few(["cat"], 2)
        ('cat, dog, ...', 'cat')
    """
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def shorten(text: str, length: int = MAX_SENTENCE_LENGTH) -> str:
    """Return text shortened to at most `length` characters: the beginning, "..." and the end of longer text."""
    if len(text) <= length:
        return text
    begin_length = (length * 2) // 3 - 1
    return f"{text[:begin_length]} ... {text[len(text) - (length - begin_length - 5) :]}"


def short_repr(value: object) -> str:
    """Return the `repr` of an untrusted value, shortened to 80 characters, for a message."""
    return shorten(repr(value), 80)


def one_line_message(text: str) -> str:
    r"""Return a message as one line, with control characters replaced by escapes and long text shortened.

    Example:
        >>> one_line_message("expected a number,\n  got \x1b[1m")
        'expected a number, got \\x1b[1m'
        >>> one_line_message("no image: cat\udce3.png")  # a file name with a byte that is not UTF-8
        'no image: cat\\xe3.png'
    """
    line = _LINE_BREAK.sub(" ", text.strip())
    line = _LONG_WORD.sub(lambda match: shorten(match[0], MAX_WORD_LENGTH // 2), line)
    return _SURROGATE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", escape_controls(shorten(line)))


def replace_undrawable(text: str) -> str:
    """Return text with every character that Pillow's built-in font lacks replaced by "?"."""
    return text.encode("latin-1", errors="replace").decode("latin-1")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with up to two names similar to a mistyped word; "" if no name is similar.

    Example:
        >>> did_you_mean("epoch", ["epochs", "lr"])
        ' (did you mean epochs?)'
    """
    similar_names = difflib.get_close_matches(word, list(names), n=2)
    return f" (did you mean {' or '.join(similar_names)}?)" if similar_names else ""


def percent(share: float, format_spec: str = ".1f") -> str:
    """Return a fraction from 0 to 1 as text in percent.

    Example:
        >>> percent(0.9123), percent(0.95, "g"), percent(0.4, ".0f")
        ('91.2 %', '95 %', '40 %')
    """
    return f"{100 * share:{format_spec}} %"


def _is_hidden(character: str) -> bool:
    if character in _KEPT_CONTROLS or character in _JOINERS:
        return False
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or ord(character) in _CONTROL_SURROGATES


def format_duration(seconds: float) -> str:
    """Return a duration as text, rounded to seconds, minutes or hours.

    Example:
        >>> [format_duration(seconds) for seconds in (8, 59.7, 100, 1000, 9000)]
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
    """Return the first line of an exception's message, or the name of the exception's type if the message is empty."""
    return str(problem).split("\n")[0].strip() or type(problem).__name__
