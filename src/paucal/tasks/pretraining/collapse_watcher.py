"""The watcher for collapse: it assesses the health of a run after each epoch and reports changes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from paucal.evaluation.collapse import Verdict
from paucal.types import UserError

Judge = Callable[[Sequence[Mapping[str, float]], int | None], Verdict | None]
OnCollapse = Literal["warn", "stop", "rollback"]

CONSEQUENCE = {
    "warn": "The run continues (--on-collapse warn).",
    "stop": "The run stops here (--on-collapse stop).",
    "rollback": "The run returns to its last healthy state (--on-collapse rollback).",
}


class CollapseWatcher:
    """Assesses every epoch of a run, prints changes of the verdict, and remembers the newest healthy epoch.

    A verdict needs several epochs with the same symptom, so epochs just before it may already be unhealthy. An epoch
    counts as healthy only if it shows no symptom by itself.

    Args:
        on_collapse: Reaction of the run to a verdict; here it only changes the messages.
        judge: Returns the verdict after some epochs; its second argument is the number of consecutive epochs that must
            show a symptom, None for the default.
        say: Function that prints a line.

    Attributes:
        verdict: Verdict on the newest epoch; None if it is healthy.
        healthy_epoch: Newest epoch without a symptom; None before the first.
    """

    def __init__(self, on_collapse: OnCollapse, judge: Judge, say: Callable[[str], None]) -> None:
        if on_collapse not in get_args(OnCollapse):
            raise UserError(f"--on-collapse is {on_collapse!r}; expected one of {', '.join(get_args(OnCollapse))}.")
        self.on_collapse, self._say = on_collapse, say
        self._judge = judge
        self._rows: list[dict[str, float]] = []
        self._history: list[dict[str, Any]] = []
        self.verdict: Verdict | None = None
        self.healthy_epoch: float | None = None

    def look(self, row: Mapping[str, float], silent: bool = False) -> Verdict | None:
        """Assess the run after an epoch; print nothing if `silent`, as for the epochs before a run was resumed."""
        previous, self._rows = self.verdict, [*self._rows, dict(row)]
        self.verdict = self._judge(self._rows, None)
        epoch = row.get("epoch", float(len(self._rows)))
        if self.verdict is None and not self.suspicious:
            self.healthy_epoch = epoch
        kinds = [None if verdict is None else verdict.kind for verdict in (previous, self.verdict)]
        if kinds[0] != kinds[1]:
            sentence = "the signs of collapse are gone." if self.verdict is None else self.verdict.sentence
            self._history.append({"epoch": epoch, "kind": kinds[1], "sentence": sentence})
            if not silent:
                self._report_change(epoch, kinds[0])
        return self.verdict

    @property
    def suspicious(self) -> bool:
        """Whether the newest epoch by itself shows a symptom of collapse."""
        return self._judge(self._rows, 1) is not None

    def history(self) -> list[dict[str, Any]]:
        """Return the changes of the verdict as "epoch", "kind" (None: healthy again) and "sentence"."""
        return [dict(entry) for entry in self._history]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, with the rows of all epochs."""
        return {"rows": self._rows, "history": self._history, "healthy_epoch": self.healthy_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint, and assess its newest epoch again."""
        self._rows = [dict(row) for row in state["rows"]]
        self._history = [dict(entry) for entry in state["history"]]
        self.healthy_epoch = state["healthy_epoch"]
        self.verdict = self._judge(self._rows, None)

    def _report_change(self, epoch: float, previous_kind: str | None) -> None:
        if self.verdict is None:
            self._say(f"epoch {epoch:g}: the signs of {previous_kind} are gone")
            return
        since = "" if self.healthy_epoch is None else f"; the last healthy epoch was {self.healthy_epoch:g}"
        self._say(f"epoch {epoch:g}: {self.verdict.sentence.rstrip('.')}{since}.")
        self._say(f"  {self.verdict.advice} {CONSEQUENCE[self.on_collapse]}")
