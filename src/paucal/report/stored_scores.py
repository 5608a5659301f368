"""Read stored scores, which are untrusted, and format scores as text, for the reports of all tasks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from paucal.report.inputs import RunFiles
from paucal.types import UserError
from paucal.wording import counted, join_first_few, percent

T = TypeVar("T")
MAX_CLASSES, MAX_TEXT = 300, 300  # largest number of rows in a table of classes, and of characters of a text
FEW_IMAGES = 20  # number of test images below which there is a warning


def read_stored(
    files: RunFiles, name: str, read: Callable[[Any], T], missing: T | None = None, repeat: str = "train"
) -> T:
    """Read the JSON file `name` of a run, and convert its content with `read`.

    Return `missing` if the file is missing; raise a UserError if `missing` is None. If the file is damaged,
    the message advises to restore the file or to repeat the step that the verb `repeat` names.
    """
    path = files.run.path / name
    if missing is not None and not path.is_file():
        return missing
    try:
        return read(files.run.read_json(name))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem!r}): restore the file, or {repeat} again.") from problem


def score_and_interval(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return a score and its confidence interval as texts; the interval is "" if it is unknown."""
    estimate, low, high = (None if value[name] is None else float(value[name]) for name in ("value", "low", "high"))
    if estimate is None:
        return "none", ""
    return percent(estimate), "" if low is None or high is None else f"{100 * low:.1f} and {100 * high:.1f}"


def warning_sentences(images: int, unseen: Sequence[str], noun: str, consequence: str) -> list[str]:
    """Return warnings about the reliability of scores; 0 images means not evaluated yet.

    `unseen` are the names of the classes that no test `noun` ("image" or "mask") shows.
    """
    sentences = []
    if 0 < images < FEW_IMAGES:
        sentences.append(f"With only {counted(images, 'test image')}, the score and its interval are both unreliable.")
    if unseen:
        sentences.append(f"No test {noun} shows {join_first_few(unseen, 8)}: {consequence} is unknown.")
    return sentences
