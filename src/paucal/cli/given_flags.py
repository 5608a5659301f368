"""Other names of flags, and messages that name each setting as the user did."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from paucal.settings.options import earlier_names, flag
from paucal.types import UserError

# Flags by their short forms, and by the names that other tools use for these flags.
FLAG_ALIASES = {
    "-b": "--batch-size",
    "-j": "--workers",
    "--imgsz": "--img-size",
    "--image-size": "--img-size",
    "--out": "--output",
    "--ema": "--average",
    # torchrun would take --monitor for an abbreviation of its own --monitor-interval.
    "--monitor-data": "--monitor",
}
# For each flag that the user gave, the usual flag of the same setting.
_given_flags: ContextVar[dict[str, str]] = ContextVar("given_flags")


@contextmanager
def given_flags_in_errors() -> Iterator[None]:
    """Let a UserError of the block name each setting as the user did, such as --image-size instead of --img-size."""
    token = _given_flags.set({})
    try:
        yield
    except UserError as problem:
        given_by_usual: dict[str, list[str]] = {}
        for given, usual in _given_flags.get().items():
            given_by_usual.setdefault(usual, []).append(given)
        message = str(problem)
        for usual, names in given_by_usual.items():
            if len(names) == 1:  # otherwise the message may be about any of the names
                message = re.sub(rf"(?<![\w/-]){usual}(?![\w/-])", names[0], message)
        if message == str(problem):
            raise
        raise UserError(message) from problem
    finally:
        _given_flags.reset(token)


def note_given_flags(
    arguments: Sequence[str], config: Iterable[str], flags: Collection[str], settings_types: Iterable[type]
) -> None:
    """Store the flags that the user gave, for `given_flags_in_errors`.

    `flags` are all names of the command's flags. `config` has the names of the settings in config files.
    """
    usual_flags = dict(FLAG_ALIASES)
    for settings_type in settings_types:
        usual_flags |= {flag(name): flag(current) for name, (current, _) in earlier_names(settings_type).items()}
    words = (text.partition("=")[0] if text.startswith("--") else text[:2] for text in arguments)
    given = [word for word in (*words, *map(flag, config)) if word in flags]
    _given_flags.get({}).update({word: usual_flags.get(word, word) for word in given})
