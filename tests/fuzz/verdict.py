"""What every call must keep to, whatever it is given."""

import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from fuzz.calls import Case, Outcome

CODES = (0, 2, 130)
LONGEST = 1000  # characters of an error
_FRAME = re.compile(r'File "([^"]*)", line (\d+),? in (\S+)')
_ASIDE = re.compile(
    r"skipped: |\d+ match(es)? of |classified \d+ image|\d+ of \d+ (answer|image)s? (are kept|have predictions) in "
)  # what `predict` says beside its answer
State = dict[str, tuple[int, ...]]


def state_of(*roots: Path) -> State:
    """Return what tells whether anything below some folders was touched, linked folders not followed.

    The time of the last change of a file's record cannot be set back, so that no content need be read.
    """
    found: State = {}
    for root in roots:
        found[str(root)] = _state(root)
        for folder, names, files in os.walk(root):
            for name in (*names, *files):
                path = os.path.join(folder, name)
                found[path] = _state(path)
    return found


def _state(path: str | Path) -> tuple[int, ...]:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return ()
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)


def touched(before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the paths that came, went or changed."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def faults(case: Case, outcome: Outcome) -> list[str]:
    """Return what a call did wrong, in words that are the same for the same fault."""
    if outcome.why in ("memory", "processes", "deaf", "idle"):
        return [f"{outcome.why}: {where(outcome)}"]
    if "Traceback (most recent call last)" in outcome.out + outcome.err:
        return [f"traceback: {where(outcome)}"]
    judged = case.argv[:1] == ("check",) and "misleads" in outcome.out  # its exit code says so, as documented
    if outcome.code not in CODES and not (outcome.code == 1 and judged):
        return [f"exit code {outcome.code}: {where(outcome)}"]
    if outcome.why == "busy" and not _was_at_work(case, outcome):
        return [f"busy: {where(outcome)}"]
    return _of_the_sentence(outcome) if outcome.code == 2 else []


def _was_at_work(case: Case, outcome: Outcome) -> bool:
    """Whether a call that was interrupted had told what it does; a long run is no fault."""
    return outcome.code == 130 and ("settings" in outcome.out or "to compute with" in outcome.out)


def _of_the_sentence(outcome: Outcome) -> list[str]:
    lines = [line for line in outcome.err.split("\n") if line and not _ASIDE.match(line)]
    if not lines or not lines[-1].startswith("error: "):
        return [f"no sentence: {_pattern(lines[-1] if lines else '')}"]
    found, text = [], lines[-1]
    if len(lines) > 1:
        found.append(f"more than a sentence: {_pattern(lines[0])} ... {_pattern(text)}")
    if len(text) > LONGEST:
        found.append(f"long: {_pattern(text)}")
    odd = {unicodedata.name(c, hex(ord(c))) for c in text if unicodedata.category(c) in ("Cc", "Cs") or c == "\ufffd"}
    if odd:
        found.append(f"control characters: {_pattern(text)}")
    return found


def where(outcome: Outcome) -> str:
    """Return the place of a failure: the last frame in paucal, the last one at all, and the last line."""
    text = outcome.err
    frames = _FRAME.findall(text)
    if outcome.why:  # as faulthandler writes it: newest call first
        frames = frames[::-1]
    own = [frame for frame in frames if "/paucal/" in frame[0]]
    picked = list(dict.fromkeys([*own[-1:], *frames[-1:]]))
    places = " < ".join(f"{_short(path)}:{line} {name}" for path, line, name in reversed(picked))
    last = text.strip().rsplit("\n", 1)[-1] if not outcome.why and frames else ""
    return f"{places} {last[:60].partition(':')[0]}".strip() or _pattern(text.strip()[-100:])


def _short(path: str) -> str:
    return "/".join(Path(path).parts[-3:])


def _pattern(text: str) -> str:
    """Return a sentence without its values."""
    text = re.sub(r"(.)\1{30,}", "_", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"|(/[\w.~-]+)+/?|\d+", "_", text[:300])
    return "".join(c if c.isprintable() else "." for c in text)[:110]
