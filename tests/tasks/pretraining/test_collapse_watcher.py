import json

import pytest

from evaluation.courses import LINE, ONE_PROTOTYPE, UNIFORM, B, D, K, course
from paucal.evaluation.collapse import PATIENCE, find_collapse
from paucal.tasks.pretraining.stage_watch import CollapseWatcher
from paucal.types import UserError


def watcher(on_collapse="warn", **options) -> tuple[CollapseWatcher, list[str]]:
    said: list[str] = []

    def judged(rows, patience):
        return find_collapse(rows, K, D, batch=B, patience=patience or PATIENCE, **options)

    return CollapseWatcher(on_collapse, judged, said.append), said


def with_sick_epochs(sick: dict, epochs: range, total: int = 12) -> list[dict[str, float]]:
    return [{**row, **sick} if row["epoch"] in epochs else row for row in course(total)]


def test_watcher__says_once_what_is_wrong_and_when_it_is_over():
    seen, said = watcher()
    kinds = [verdict and verdict.kind for verdict in map(seen.assess, with_sick_epochs(ONE_PROTOTYPE, range(6, 10)))]
    assert kinds == [None] * 7 + ["constant output"] * 2 + [None] * 3
    assert len(said) == 3
    assert said[0].startswith("epoch 8: constant output: the teacher's view head gives all images the same output")
    assert said[0].endswith("the last healthy epoch was 5.")
    assert "Raise the teacher temperature" in said[1]
    assert said[1].endswith("The run continues (--on-collapse warn).")
    assert said[2] == "epoch 10: the signs of constant output are gone"
    assert [(entry["epoch"], entry["kind"]) for entry in seen.history()] == [(8.0, "constant output"), (10.0, None)]
    json.dumps(seen.history())


def test_watcher__an_epoch_with_a_sign_is_not_healthy_before_there_is_a_verdict():
    seen, _ = watcher()
    healthy, suspicious = [], []
    for row in with_sick_epochs(LINE, range(5, 9)):
        seen.assess(row)
        healthy.append(seen.healthy_epoch)
        suspicious.append(seen.is_suspicious)
    assert healthy == [1, 2, 3, 4, 4, 4, 4, 4, 9, 10, 11, 12]
    assert suspicious == [False] * 4 + [True] * 4 + [False] * 4


@pytest.mark.parametrize(("on_collapse", "words"), [("stop", "stops here"), ("rollback", "returns to")])
def test_watcher__says_what_the_run_does_about_it(on_collapse, words):
    seen, said = watcher(on_collapse)
    for row in course(8, **UNIFORM):
        seen.assess(row)
    assert words in said[1]


def test_watcher__silent_looks_remember_and_say_nothing():
    rows = with_sick_epochs(UNIFORM, range(4, 9), 8)
    loud, _ = watcher()
    for row in rows:
        loud.assess(row)
    quiet, said = watcher()
    for row in rows:
        quiet.assess(row, silent=True)
    assert said == []
    assert quiet.verdict == loud.verdict is not None
    assert quiet.history() == loud.history()


def test_watcher__goes_on_from_stored_rows_as_if_never_interrupted():
    rows = with_sick_epochs(ONE_PROTOTYPE, range(6, 12))
    whole, _ = watcher()
    verdicts = [whole.assess(row) for row in rows]
    for cut in (3, 7, 9):
        second, said = watcher()
        for row in rows[:cut]:  # the stored rows of a stopped run
            second.assess(row, silent=True)
        assert [second.assess(row) for row in rows[cut:]] == verdicts[cut:]
        assert second.history() == whole.history()
        assert second.healthy_epoch == whole.healthy_epoch
        assert len(said) == (3 if cut < 8 else 1)  # the verdict's two lines were said before the cut, or after it


def test_watcher__grace_and_choices():
    early, _ = watcher(grace_steps=100)
    late, _ = watcher()
    rows = course(4, **UNIFORM)
    assert [early.assess(row) is None for row in rows] == [True, True, False, False]
    assert [late.assess(row) is None for row in rows] == [True] * 4
    with pytest.raises(UserError, match="--on-collapse is 'panic'; expected one of warn, stop, rollback"):
        watcher("panic")
