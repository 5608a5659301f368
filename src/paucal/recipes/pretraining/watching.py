"""What happens at the end of each epoch of a pre-training run, and when it asks to be changed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from paucal.evaluation.collapse import Verdict, grace_period
from paucal.recipes.pretraining.assembly import AssembledPretraining
from paucal.recipes.pretraining.monitor import NAME
from paucal.recipes.pretraining.settings import PretrainSettings
from paucal.recipes.pretraining.watcher import CollapseWatcher
from paucal.recipes.processes import is_first
from paucal.recipes.resuming import store_changes
from paucal.recipes.voice import Voice
from paucal.runs import RunFolder, keep_as, load_checkpoint
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
    def rollbacks(self) -> list[dict[str, Any]]:
        """What was found each time the run has gone back to a healthy state: "epoch", "kind", "sentence"."""
        return list(self.run.read_yaml(self.run.config.name).get(ROLLBACKS, []))

    def history(self) -> list[dict[str, Any]]:
        """Return when verdicts changed, those that were undone included; see `CollapseWatcher.history`."""
        return [*self.rollbacks, *self.watcher.history()]

    def prepare_next(self) -> None:
        """Change what has to be changed before the run goes on; for the first process."""
        if self._can_roll_back():
            self._roll_back()
        else:
            self.voice.say("the region task joins: its head begins anew, all else goes on as it was")

    def last_words(self) -> list[str]:
        """Return what to say of a run that stays stopped."""
        if self._verdict is None or self.assembled.settings.on_collapse == "warn":
            return []
        return [f"stopped because of {self._verdict.sentence}", self._verdict.advice]

    def _keep_healthy(self) -> None:
        """Keep the saved state of before this epoch, which has been found healthy, under a second name."""
        if self.assembled.settings.on_collapse == "rollback" and self.run.last.exists():
            keep_as(self.run.last, self.run.last.with_name(HEALTHY))

    def _can_roll_back(self) -> bool:
        settings = self.assembled.settings
        collapsed = self._verdict is not None and settings.on_collapse == "rollback"
        return collapsed and len(self.rollbacks) < MOST_ROLLBACKS and self.run.last.with_name(HEALTHY).exists()

    def _roll_back(self) -> None:
        """Go back to the last healthy state, with settings that pull away from what was found."""
        verdict = self._verdict
        assert verdict is not None
        settings, origin = self.assembled.settings, dict(self.assembled.origin)
        keep_as(self.run.last.with_name(HEALTHY), self.run.last)
        rows = self.run.read_rows()
        found = {"epoch": rows[-1]["epoch"], "kind": verdict.kind, "sentence": verdict.sentence}
        reason = f"rollback {len(self.rollbacks) + 1}, after {verdict.kind}"
        changes = gentler(settings, verdict.kind)
        store_changes(self.run, replace(settings, **changes), origin | dict.fromkeys(changes, reason))
        config = self.run.read_yaml(self.run.config.name)
        self.run.write_yaml(self.run.config.name, {**config, ROLLBACKS: [*self.rollbacks, found]})
        # What was undone must not count against what follows.
        self.run.write_rows(load_checkpoint(self.run.last)["callbacks"]["RunKeeper"]["rows"])
        values = ", ".join(f"{name.replace('_', ' ')} {value:.5g}" for name, value in changes.items())
        self.voice.say(f"{reason}: back to the last healthy state, with {values}")


def gentler(settings: PretrainSettings, kind: str) -> dict[str, float]:
    """Return the settings to change after a collapse.

    Sharpening works against uniform answers and centring against a constant one, so these two need opposite changes of
    the teacher's temperature (DINO, section 5.3); all but the first need a calmer student and teacher.
    """
    temperature = settings.teacher_temperature or 0.07
    if kind == "uniform output":
        start = min(settings.warmup_teacher_temperature, 0.75 * temperature)
        return {"teacher_temperature": 0.75 * temperature, "warmup_teacher_temperature": start}
    calmer = {"lr": (settings.lr or 0.0) / 2, "momentum": 1 - (1 - (settings.momentum or 0.0)) / 2}
    return {"teacher_temperature": 1.25 * temperature, **calmer} if kind == "constant output" else calmer
