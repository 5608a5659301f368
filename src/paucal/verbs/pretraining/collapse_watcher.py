"""What is remembered of a run's health from epoch to epoch, and what is said about it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from paucal.evaluation.collapse import Verdict
from paucal.types import UserError

Judge = Callable[[Sequence[Mapping[str, float]], int | None], Verdict | None]
OnCollapse = Literal["warn", "stop", "rollback"]

CONSEQUENCE = {
    "warn": "The run goes on (--on-collapse warn).",
    "stop": "The run stops here (--on-collapse stop).",
    "rollback": "The run goes back to its last healthy state (--on-collapse rollback).",
}


class CollapseWatcher:
    """Judges every epoch of a run, says what has changed, and knows the newest healthy epoch.

    A verdict needs several epochs with the same sign, so the newest epochs without a verdict may be sick already. An
    epoch counts as healthy only where it shows no sign by itself.

    Args:
        on_collapse: what the run does about a verdict; here it only decides what is said.
        judge: says what is wrong after the newest of some epochs; its second argument is how many epochs in a row must
            show a sign, None for as many as it finds right.
        say: prints a line.

    Attributes:
        verdict: of the newest epoch; None where nothing is wrong.
        healthy_epoch: the newest epoch without a sign; None before the first.

    Raises:
        UserError: `on_collapse` is something else.
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
        """Judge the run after an epoch.

        Args:
            row: the metrics of the epoch, see `collapse.COLUMNS`.
            silent: say nothing, as for the epochs before a resumption.
        """
        before, self._rows = self.verdict, [*self._rows, dict(row)]
        self.verdict = self._judge(self._rows, None)
        epoch = row.get("epoch", float(len(self._rows)))
        if self.verdict is None and not self.suspicious:
            self.healthy_epoch = epoch
        kinds = [None if verdict is None else verdict.kind for verdict in (before, self.verdict)]
        if kinds[0] != kinds[1]:
            self._history.append({"epoch": epoch, "kind": kinds[1], "sentence": self._sentence()})
            if not silent:
                self._tell(epoch, kinds[0])
        return self.verdict

    @property
    def suspicious(self) -> bool:
        """Whether the newest epoch by itself shows a sign of what a verdict would name if it lasted."""
        return self._judge(self._rows, 1) is not None

    def history(self) -> list[dict[str, Any]]:
        """Return when the verdict changed: plain values "epoch", "kind" (None: well again) and "sentence"."""
        return [dict(entry) for entry in self._history]

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores; the judged rows are part of it."""
        return {"rows": self._rows, "history": self._history, "healthy_epoch": self.healthy_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint stored, and judge its newest epoch again."""
        self._rows = [dict(row) for row in state["rows"]]
        self._history = [dict(entry) for entry in state["history"]]
        self.healthy_epoch = state["healthy_epoch"]
        self.verdict = self._judge(self._rows, None)

    def _sentence(self) -> str:
        return "no sign of collapse any more." if self.verdict is None else self.verdict.sentence

    def _tell(self, epoch: float, before: str | None) -> None:
        if self.verdict is None:
            self._say(f"epoch {epoch:g}: no sign of {before} any more")
            return
        since = "" if self.healthy_epoch is None else f"; the last healthy epoch was {self.healthy_epoch:g}"
        self._say(f"epoch {epoch:g}: {self.verdict.sentence.rstrip('.')}{since}.")
        self._say(f"  {self.verdict.advice} {CONSEQUENCE[self.on_collapse]}")
