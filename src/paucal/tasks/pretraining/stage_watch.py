"""The watcher of a pre-training run: collapse, rollbacks, and the change to the next stage."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paucal.evaluation.collapse import Verdict, grace_period
from paucal.methods.contract import HealthScale
from paucal.methods.pretraining import method_of
from paucal.runner.console import Console
from paucal.runner.job import Watcher
from paucal.runner.run_folder import store_changes
from paucal.runs import RunFolder, keep_as
from paucal.tasks.pretraining.assembly import PretrainingSetup
from paucal.tasks.pretraining.collapse_watcher import CollapseWatcher
from paucal.tasks.pretraining.monitor import NAME
from paucal.training import checkpoint_rows
from paucal.wording import percent

MAX_ROLLBACKS = 2
HEALTHY = "healthy.ckpt"
START = "monitor.json"
ROLLBACKS = "rollbacks"
WORSE, WORSE_EPOCHS = 0.01, 2  # loss of accuracy, and epochs in a row, that stop a run from trained weights


class StageWatch(Watcher[PretrainingSetup]):
    """Watches a stage of a run for collapse and for the last epoch of the stage."""

    scores_start = True

    def __init__(self, run: RunFolder, setup: PretrainingSetup, console: Console) -> None:
        super().__init__(setup, console)
        self.run = run
        settings, self.method = setup.settings, method_of(setup.settings)
        scale = health_scale(setup)

        def judge(rows: Sequence[Mapping[str, float]], patience: int | None) -> Verdict | None:
            return self.method.judge(settings, rows, scale, patience)

        self.watcher = CollapseWatcher(settings.on_collapse, judge, console.say)
        self._verdict: Verdict | None = None
        self._changes = False
        self._scores: tuple[float | None, float | None] = None, None  # at the start and after the newest epoch
        self._worse = 0  # consecutive epochs, up to now, that score below the initial weights
        for row in checkpoint_rows(run.last):  # epochs in later rows of `metrics.csv` are repeated
            self.watcher.look(row, silent=True)
            self._count_worse(row)

    def on_start(self, scores: Mapping[str, float]) -> None:
        """Store the monitor's score of the weights at the start of the run."""
        self.run.write_json(START, {NAME: scores[NAME]})

    def knn_start(self) -> float | None:
        """Return the monitor's score of the weights at the start of the run; None without one."""
        return self.run.read_json(START).get(NAME) if (self.run.path / START).exists() else None

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> bool:
        """Print the results of an epoch; return whether the run has to stop here."""
        self.console.on_epoch(epoch, epochs, row)
        settings = self.setup.settings
        self._verdict = self.watcher.look(row)
        is_healthy = self._verdict is None and not self.watcher.suspicious
        if is_healthy and settings.on_collapse == "rollback" and self.run.last.exists():
            keep_as(self.run.last, self.run.last.with_name(HEALTHY))  # saved before this epoch, which is healthy
        self._changes = epoch == self.method.changes_after(settings) and epoch < epochs
        collapsed = self._verdict is not None and settings.on_collapse != "warn" and epoch < epochs
        self._scores = self._count_worse(row), row.get(NAME)
        return collapsed or self._changes or (self._worse >= WORSE_EPOCHS and epoch < epochs)

    @property
    def should_restart(self) -> bool:
        """Whether the run should continue after `advance_stage`."""
        return self._changes or self._can_roll_back()

    @property
    def rollbacks(self) -> list[dict[str, Any]]:
        """Verdict of each rollback to a healthy state, as "epoch", "kind" and "sentence"."""
        return list(self.run.read_yaml(self.run.config.name).get(ROLLBACKS, []))

    def history(self) -> list[dict[str, Any]]:
        """Return the changes of the verdict, including those before rollbacks; see `CollapseWatcher.history`."""
        return [*self.rollbacks, *self.watcher.history()]

    def advance_stage(self) -> None:
        """Roll back, or start the next stage; called on the first process only."""
        if self._can_roll_back():
            self._roll_back()
        else:
            self.console.say(self.method.stage_news)

    def stop_message(self) -> list[str]:
        """Return why the run was stopped, and what to do."""
        start, newest = self._scores
        if self._worse >= WORSE_EPOCHS and start is not None and newest is not None:
            return [
                "stopped, because training makes the weights worse: nearest neighbours classify "
                f"{percent(newest)} of the monitor's images correctly, down from {percent(start)} at the start.",
                "Use the weights that it started from, or start again with a lower --lr or a larger --freeze.",
            ]
        if self._verdict is None or self.setup.settings.on_collapse == "warn":
            return []
        return [f"stopped because of {self._verdict.sentence}", self._verdict.advice]

    def _count_worse(self, row: Mapping[str, float]) -> float | None:
        """Count an epoch that scores below the trained weights at the start; return their score, None without."""
        start = self.knn_start() if begins_settled(self.setup) else None
        is_worse = start is not None and row.get(NAME, start) < start - WORSE
        self._worse = self._worse + 1 if is_worse else 0
        return start

    def _can_roll_back(self) -> bool:
        settings = self.setup.settings
        collapsed = self._verdict is not None and settings.on_collapse == "rollback"
        return collapsed and len(self.rollbacks) < MAX_ROLLBACKS and self.run.last.with_name(HEALTHY).exists()

    def _roll_back(self) -> None:
        """Restore the last healthy state, with settings that counteract the collapse."""
        verdict = self._verdict
        assert verdict is not None
        settings, origin = self.setup.settings, dict(self.setup.origin)
        keep_as(self.run.last.with_name(HEALTHY), self.run.last)
        rows = self.run.read_rows()
        entry = {"epoch": rows[-1]["epoch"], "kind": verdict.kind, "sentence": verdict.sentence}
        reason = f"rollback {len(self.rollbacks) + 1}, after {verdict.kind}"
        changes = self.method.calmer(settings, verdict.kind)
        store_changes(self.run, replace(settings, **changes), origin | dict.fromkeys(changes, reason))
        config = self.run.read_yaml(self.run.config.name)
        self.run.write_yaml(self.run.config.name, {**config, ROLLBACKS: [*self.rollbacks, entry]})
        # Rows after the healthy state must not affect later verdicts.
        self.run.write_rows(checkpoint_rows(self.run.last))
        values = ", ".join(f"{name.replace('_', ' ')} {value:.5g}" for name, value in changes.items())
        self.console.say(f"{reason}: back to the last healthy state, with {values}")


def begins_settled(setup: PretrainingSetup) -> bool:
    """Return whether symptoms count from the first epoch: for pretrained weights, unless the assessed heads are new."""
    start = setup.start
    return start is not None and not start.undertrained and method_of(setup.settings).settled_start


def health_scale(setup: PretrainingSetup) -> HealthScale:
    """Return the reference scale for the health of a run."""
    settings, plan = setup.settings, setup.plan
    warmup = round(settings.warmup_epochs * plan.steps_per_epoch)
    dim = setup.objective.backbones()[0].dim
    grace = 0 if begins_settled(setup) else grace_period(plan.total_steps, warmup)
    return HealthScale(dim, settings.batch_size, grace)
