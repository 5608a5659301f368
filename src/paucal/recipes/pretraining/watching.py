"""What happens at the end of each epoch of a pre-training run, and when it asks to be changed."""

import shutil
from collections.abc import Mapping
from dataclasses import replace

import torch

from paucal.evaluation.collapse import Verdict, grace_period
from paucal.recipes.pretraining.assembly import AssembledPretraining
from paucal.recipes.pretraining.monitor import NAME
from paucal.recipes.pretraining.watcher import CollapseWatcher
from paucal.recipes.processes import is_first
from paucal.recipes.resuming import store_changes
from paucal.recipes.voice import Voice
from paucal.runs import RunFolder
from paucal.training import Watch

MOST_ROLLBACKS = 2
HEALTHY = "healthy.ckpt"
START = "monitor.json"
ROLLBACKS = "rollbacks"


class Watching:
    """Watches a stage of a run: for collapse, and for the epoch from which the region task joins.

    Args:
        run: the run.
        assembled: the stage.
        voice: says what is seen.
    """

    def __init__(self, run: RunFolder, assembled: AssembledPretraining, voice: Voice) -> None:
        self.run, self.assembled, self.voice = run, assembled, voice
        settings, plan = assembled.settings, assembled.plan
        self.watcher = CollapseWatcher(
            settings.on_collapse,
            settings.out_dim or 2,
            assembled.objective.student.backbone.dim,
            voice.say,
            batch=settings.batch_size,
            grace_steps=grace_period(plan.total_steps, round((settings.warmup_epochs or 0) * plan.steps_per_epoch)),
        )
        for row in run.read_rows():
            self.watcher.look(row, silent=True)
        self._verdict: Verdict | None = None
        self._joins = False

    def watch(self) -> Watch | None:
        """Return the monitor of labelled images, or None where there is none."""
        return None if self.assembled.monitor is None else Watch(self.assembled.monitor)

    def knn_start(self) -> float | None:
        """Return what the monitor finds with the weights the run began with; tried once, at the beginning.

        Every process must call it.
        """
        monitor, file = self.assembled.monitor, self.run.path / START
        if monitor is None:
            return None
        if not file.exists() and not self.run.last.exists():
            score = monitor(self.assembled.objective.deployable(), torch.device("cpu"))[NAME]
            if is_first():
                self.run.write_json(START, {NAME: score})
            return score
        return self.run.read_json(START).get(NAME) if file.exists() else None

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> bool:
        """Say how an epoch went; return whether the run shall be saved and stopped here."""
        self.voice.on_epoch(epoch, epochs, row)
        settings = self.assembled.settings
        self._verdict = self.watcher.look(row)
        if self._verdict is None and not self.watcher.suspicious:
            self._keep_healthy()
        self._joins = bool(settings.region_after) and epoch == settings.region_after < epochs
        collapsed = self._verdict is not None and settings.on_collapse != "warn" and epoch < epochs
        return collapsed or self._joins

    @property
    def wants_a_change(self) -> bool:
        """Whether the run can go on, changed by `prepare_next`."""
        return self._joins or self._can_roll_back()

    @property
    def rollbacks(self) -> int:
        """Times the run has gone back to a healthy state."""
        return int(self.run.read_yaml(self.run.config.name).get(ROLLBACKS, 0))

    def prepare_next(self) -> None:
        """Change what has to be changed before the run goes on; for the first process."""
        if self._can_roll_back():
            self._roll_back()
        else:
            self.voice.say("the region task joins: its head begins anew, all else goes on as it was")

    def last_words(self) -> list[str]:
        """Return what to say of a run that stays stopped."""
        if self._verdict is None:
            return []
        return [f"stopped because of {self._verdict.sentence}", self._verdict.advice]

    def _keep_healthy(self) -> None:
        """Keep the saved state of before this epoch, which has been found healthy, under a second name."""
        if self.assembled.settings.on_collapse == "rollback" and self.run.last.exists():
            shutil.copyfile(self.run.last, self.run.last.with_name(HEALTHY))

    def _can_roll_back(self) -> bool:
        settings = self.assembled.settings
        collapsed = self._verdict is not None and settings.on_collapse == "rollback"
        return collapsed and self.rollbacks < MOST_ROLLBACKS and self.run.last.with_name(HEALTHY).exists()

    def _roll_back(self) -> None:
        """Go back to the last healthy state, with half the rate and a teacher that is sharper and slower."""
        assert self._verdict is not None
        settings, origin = self.assembled.settings, dict(self.assembled.origin)
        shutil.copyfile(self.run.last.with_name(HEALTHY), self.run.last)
        number = self.rollbacks + 1
        changed = replace(
            settings,
            lr=(settings.lr or 0.0) / 2,
            teacher_temperature=min(settings.teacher_temperature or 0.07, settings.warmup_teacher_temperature),
            momentum=1 - (1 - (settings.momentum or 0.0)) / 2,
        )
        reason = f"rollback {number}, after {self._verdict.kind}"
        store_changes(self.run, changed, origin | dict.fromkeys(("lr", "teacher_temperature", "momentum"), reason))
        self.run.write_yaml(self.run.config.name, {**self.run.read_yaml(self.run.config.name), ROLLBACKS: number})
        self.voice.say(
            f"{reason}: back to the last healthy state, with a learning rate of {changed.lr:.2g}, a teacher "
            f"temperature of {changed.teacher_temperature:g} and a momentum of {changed.momentum:.5g}"
        )
