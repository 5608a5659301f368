"""One trial: a call, what it says, and whether all around it was left alone."""

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fuzz.calls import Caller, Case, Outcome
from fuzz.verdict import State, faults, state_of, touched

KEPT = ("config.yaml", "model.safetensors")  # of an old run that a failed call was to replace
OUTPUTS = ("--output", "--out", "--picture", "--cache", "--data-root")  # flags that name what may be written

PREDICTED = ("--features", "--sheet")  # of `predict`, where other verbs mean something else


class Trial(NamedTuple):
    """A case, what became of it and what was wrong with that."""

    case: Case
    outcome: Outcome
    faults: list[str]

    def __str__(self) -> str:
        """Return a report that a person can act on."""
        text = self.outcome.err
        text = text if len(text) < 1800 else f"{text[:300]} ... {text[-1500:]}"
        end = text.encode("unicode_escape").decode().replace("\\n", "\n    ")
        return "\n  ".join([*self.faults, f"$ {self.case}", f"exit code {self.outcome.code}", end])


def trial(caller: Caller, case: Case) -> Trial:
    """Make a call and judge it."""
    caller.prepare(case)
    around = (caller.material, caller.workspace / "home")
    fixed = [caller.folder / step.path for step in case.steps if step.path.partition("/")[0] not in case.mutable]
    before, mine = state_of(*around), state_of(*fixed)
    old = _kept(caller.folder, case)
    outcome = caller.call(case)
    found, after = faults(case, outcome), state_of(*around)
    changed = touched(before, after)
    wrong = [*_not_named(changed, case, caller, before, outcome.code), *touched(mine, state_of(*fixed))]
    if wrong:
        found.append(f"touched: {Path(wrong[-1]).name}")
    if outcome.code == 2 and old != _kept(caller.folder, case):
        found.append("lost: the old run")
    if changed:
        caller.restore()
    return Trial(case, outcome, found)


def _not_named(changed: list[str], case: Case, caller: Caller, before: State, code: int) -> Iterable[str]:
    """Return what was changed though the call did not say so; a call that is refused must change no file at all."""
    named = [_resolved(word, caller) for word in _outputs(case.argv)]
    for path in map(Path, changed):
        lies_there = any(path.is_relative_to(one) or one.is_relative_to(path) for one in named)
        old_file = str(path) in before and not stat.S_ISDIR(before[str(path)][-1])
        if not lies_there or (code == 2 and old_file):
            yield str(path)


def _outputs(argv: tuple[str, ...]) -> Iterable[str]:
    outputs = (*OUTPUTS, *PREDICTED) if argv[:1] == ("predict",) else OUTPUTS
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name in outputs:
            named = value if equals else following
            yield named
            if argv[0] == "predict":  # what is left of a call that was stopped
                yield f"{named}.part"
        if argv[0] == "export":  # the run's report shows its exports
            yield from (f"{word}/{name}" for name in ("report.html", "exports.json"))
        if argv[0] == "eval":  # writes into the run where no --output is given
            yield f"{word}/evaluation"


def _resolved(word: str, caller: Caller) -> Path:
    try:
        home = str(caller.workspace / "home")
        return (caller.folder / (home + word[1:] if word.startswith("~") else word)).resolve()
    except (OSError, ValueError, RuntimeError):  # no path at all
        return caller.folder


def _kept(folder: Path, case: Case) -> list[bytes]:
    if case.kind != "overwrite":
        return []
    files = [folder / "old" / name for name in KEPT]
    return [file.read_bytes() if file.is_file() else b"" for file in files]
