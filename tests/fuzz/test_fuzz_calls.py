"""Whatever the command line is given, it ends well or says in one sentence why not, and touches nothing else."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fuzz.calls import Caller, Case
from fuzz.cases import KINDS, SOUND
from fuzz.flags import flags_of, named_flags
from fuzz.server import SERVES
from fuzz.trial import trial
from paucal.cli.main import COMMAND_SUMMARIES

QUICK = (
    "fitting",
    "flag",
    "flags",
    "words",
    "config",
    "run",
    "data",
    "lists",
    "weights",
    "maps",
    "exported",
    "unfinished",
)


def run_many(caller: Caller, kind: str, count: int, *, shrink: bool) -> None:
    """Make calls of a kind; the same ones every time."""
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    @given(KINDS[kind])
    def check(case: Case) -> None:
        found = trial(caller, case)
        assert not found.faults, f"\n  {found}"

    check()


@pytest.mark.parametrize("kind", QUICK)
def test_calls__end_well_or_with_one_sentence(caller, kind):
    run_many(caller, kind, 2 if kind == "fitting" else 3, shrink=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_calls__end_well_or_with_one_sentence(caller, kind):
    run_many(caller, kind, 80 if kind in ("flag", "flags", "run") else 40, shrink=True)


@pytest.mark.slow
@pytest.mark.parametrize("verb", COMMAND_SUMMARIES)
def test_sound_calls__succeed(caller, verb):
    # Else all that is added to them would be refused for another reason.
    for words in SOUND[verb]:
        found = trial(caller, Case("sound", (verb, *words)))
        expected = 2 if "--from-published" in words else 0
        if verb == "serve":  # has no end of its own: the harness interrupts it once it answers
            assert SERVES in found.outcome.out, str(found)
            assert found.outcome.code in (0, 130), str(found)
            expected = found.outcome.code
        assert (found.outcome.code, found.faults) == (expected, []), str(found)


def test_flags__are_read_from_every_verb():
    names = {verb: {flag.name for flag in flags_of(verb)} for verb in COMMAND_SUMMARIES}
    assert {"--lr", "--config", "--resume", "--data", ""} <= names["train"]
    assert {"--local-crops", "--on-collapse"} <= names["pretrain"]
    assert {"--protocol", "--bootstrap"} <= names["eval"]
    assert {"--teacher", "--top-k"} <= names["label"]
    assert names["models"] == {"", "--ours"}
    kinds = {(verb, flag.name): (flag.kinds, flag.words, flag.several) for verb, flag in named_flags()}
    assert kinds["train", "--batch-size"] == ((int,), ("auto",), False)
    assert kinds["train", "--img-size"] == ((int,), (), True)
    assert kinds["predict", "--format"] == ((), ("csv", "json"), False)
    assert kinds["train", "--overwrite"] == ((bool,), (), False)
