"""Functions shared by the report pages of all tasks: safe reading of stored scores, and scores as text."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from paucal.report.inputs import RunFiles
from paucal.types import UserError
from paucal.wording import counted, percent

T = TypeVar("T")
MAX_CLASSES, MAX_TEXT = 300, 300
FEW_IMAGES = 20  # test images; fewer give a warning


def read_stored(
    files: RunFiles, name: str, read: Callable[[Any], T], missing: T | None = None, repeat: str = "train"
) -> T:
    """Parse the content of a JSON file of a run with `read`.

    A missing file gives `missing`, or is refused if that is None; the message says to do `repeat` again.
    """
    path = files.run.path / name
    if missing is not None and not path.is_file():
        return missing
    try:
        return read(files.run.read_json(name))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem!r}): restore it or {repeat} again.") from problem


def score_and_interval(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return a score and its interval as text, "" for an unknown interval."""
    estimate, low, high = (None if value[name] is None else float(value[name]) for name in ("value", "low", "high"))
    if estimate is None:
        return "none", ""
    return percent(estimate), "" if low is None or high is None else f"{100 * low:.1f} and {100 * high:.1f}"


def warn_few_images(images: int) -> list[str]:
    """Return a warning about few test images; none before the test."""
    if not 0 < images < FEW_IMAGES:
        return []
    return [f"{counted(images, 'test image')} are few: the score and its interval are both uncertain."]
