"""The watcher of a pre-training run: detects collapse, rolls back, and starts the next stage.

EsViT (section 4.1, figure 4) may add its region task at epoch 200 of 300 to a run that began with only the view task.
The published code then silently loses the optimizer state, since the sizes of the parameter groups change. Here the
optimizer's moments are matched by the names of their parameters, and only the moments of the new head start at zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch

from paucal.evaluation.collapse import Verdict, grace_period
from paucal.methods.contract import RunScale
from paucal.methods.pretraining import method_of
from paucal.objectives import Objective
from paucal.runner.console import Console
from paucal.runner.job import EpochListener
from paucal.runner.resuming import store_changes
from paucal.runs import RunFolder
from paucal.runs.weights import load_checkpoint
from paucal.tasks.pretraining.assembly import PretrainingSetup
from paucal.tasks.pretraining.monitor import KNN_SCORE
from paucal.training import checkpoint_rows
from paucal.training.module import parameter_groups
from paucal.types import UserError
from paucal.wording import percent
from paucal.writing import link_or_copy, write_atomically

MAX_ROLLBACKS = 2
HEALTHY_CHECKPOINT = "healthy.ckpt"
START_SCORE_FILE = "monitor.json"
ROLLBACKS_KEY = "rollbacks"  # key in the run's config file
# A run that starts from trained weights stops if, for MAX_WORSE_EPOCHS epochs in a row, the accuracy of the monitor is
# more than MAX_ACCURACY_LOSS below its initial value.
MAX_ACCURACY_LOSS, MAX_WORSE_EPOCHS = 0.01, 2
OBJECTIVE_PREFIX = "objective."  # prefix of parameter names in the checkpoint's state dict


VerdictFunction = Callable[[Sequence[Mapping[str, float]], int | None], Verdict | None]
OnCollapse = Literal["warn", "stop", "rollback"]

REACTION_TEXTS = {
    "warn": "The run continues (--on-collapse warn).",
    "stop": "The run stops here (--on-collapse stop).",
    "rollback": "The run returns to its last healthy state (--on-collapse rollback).",
}


class CollapseWatcher:
    """Assesses the health of a run after every epoch, prints changes of the verdict, and stores the last healthy epoch.

    A verdict needs several epochs with the same symptom, so the epochs just before a verdict may already be unhealthy.
    An epoch counts as healthy only if it shows no symptom by itself.

    `get_verdict` returns the verdict, given the metrics of all epochs so far and the number of consecutive epochs that
    must show a symptom (None for the default). `StageWatch` carries out the reaction `on_collapse`, which is printed
    here.
    """

    def __init__(self, on_collapse: OnCollapse, get_verdict: VerdictFunction, say: Callable[[str], None]) -> None:
        if on_collapse not in get_args(OnCollapse):
            raise UserError(f"--on-collapse is {on_collapse!r}; expected one of {', '.join(get_args(OnCollapse))}.")
        self.on_collapse, self._say, self._get_verdict = on_collapse, say, get_verdict
        self._rows: list[dict[str, float]] = []
        self._history: list[dict[str, Any]] = []
        self.verdict: Verdict | None = None  # verdict on the newest epoch; None if it is healthy
        self.healthy_epoch: float | None = None  # newest epoch without a symptom; None before such an epoch

    def assess(self, row: Mapping[str, float], silent: bool = False) -> Verdict | None:
        """Assess the run after an epoch with the metrics `row`, and print a change of the verdict unless `silent`."""
        previous, self._rows = self.verdict, [*self._rows, dict(row)]
        self.verdict = self._get_verdict(self._rows, None)
        epoch = row.get("epoch", float(len(self._rows)))
        if self.verdict is None and not self.is_suspicious:
            self.healthy_epoch = epoch
        previous_kind, kind = (None if verdict is None else verdict.kind for verdict in (previous, self.verdict))
        if kind != previous_kind:
            if self.verdict is None:
                sentence = "the signs of collapse are gone."
                lines = [f"epoch {epoch:g}: the signs of {previous_kind} are gone"]
            else:
                sentence, since = self.verdict.sentence, ""
                if self.healthy_epoch is not None:
                    since = f"; the last healthy epoch was {self.healthy_epoch:g}"
                reaction = f"  {self.verdict.advice} {REACTION_TEXTS[self.on_collapse]}"
                lines = [f"epoch {epoch:g}: {sentence.rstrip('.')}{since}.", reaction]
            self._history.append({"epoch": epoch, "kind": kind, "sentence": sentence})
            for line in () if silent else lines:
                self._say(line)
        return self.verdict

    @property
    def is_suspicious(self) -> bool:
        """Whether the newest epoch by itself shows a symptom of collapse."""
        return self._get_verdict(self._rows, 1) is not None

    def history(self) -> list[dict[str, Any]]:
        """Return a dict for each change of the diagnosis: "epoch", "kind" (None if healthy again) and "sentence"."""
        return [dict(entry) for entry in self._history]


class StageWatch(EpochListener[PretrainingSetup]):
    """Watches a stage of a run, and ends it at its last epoch, or earlier at a collapse or if the weights get worse."""

    scores_start = True

    def __init__(self, run: RunFolder, setup: PretrainingSetup, console: Console) -> None:
        super().__init__(setup, console)
        self.run = run
        settings, self.method = setup.settings, method_of(setup.settings)
        scale = health_scale(setup)
        self.watcher = CollapseWatcher(
            settings.on_collapse,
            lambda rows, patience: self.method.find_collapse(settings, rows, scale, patience),
            console.say,
        )
        self._verdict: Verdict | None = None
        self._stage_ends = False
        # The monitor's scores at the start of the run and after the newest epoch.
        self._scores: tuple[float | None, float | None] = None, None
        self._worse_epochs = 0  # number of epochs in a row, up to the newest, that score below the initial weights
        # Read the rows from the checkpoint, since `metrics.csv` may have later epochs, which will be repeated.
        for row in checkpoint_rows(run.last):
            self.watcher.assess(row, silent=True)
            self._count_worse_epochs(row)

    def on_start(self, scores: Mapping[str, float]) -> None:
        """Store the monitor's score of the initial weights."""
        self.run.write_json(START_SCORE_FILE, {KNN_SCORE: scores[KNN_SCORE]})

    def load_start_score(self) -> float | None:
        """Return the monitor's score of the initial weights; None if the score was not measured."""
        is_stored = (self.run.path / START_SCORE_FILE).exists()
        return self.run.read_json(START_SCORE_FILE).get(KNN_SCORE) if is_stored else None

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> bool:
        """Print the results of an epoch; return whether the run has to stop here."""
        self.console.on_epoch(epoch, epochs, row)
        settings = self.setup.settings
        self._verdict = self.watcher.assess(row)
        is_healthy = self._verdict is None and not self.watcher.is_suspicious
        if is_healthy and settings.on_collapse == "rollback" and self.run.last.exists():
            # The checkpoint was saved before this healthy epoch.
            link_or_copy(self.run.last, self.run.last.with_name(HEALTHY_CHECKPOINT))
        self._stage_ends = epoch == self.method.next_stage_epoch(settings) and epoch < epochs
        collapsed = self._verdict is not None and settings.on_collapse != "warn" and epoch < epochs
        self._scores = self._count_worse_epochs(row), row.get(KNN_SCORE)
        return collapsed or self._stage_ends or (self._worse_epochs >= MAX_WORSE_EPOCHS and epoch < epochs)

    @property
    def should_restart(self) -> bool:
        """Whether training starts again after this stage: with the next stage, or from before a collapse."""
        return self._stage_ends or self._can_roll_back()

    @property
    def rollbacks(self) -> list[dict[str, Any]]:
        """The verdicts that caused rollbacks, each as a dict with "epoch", "kind" and "sentence"."""
        return list(self.run.read_yaml(self.run.config.name).get(ROLLBACKS_KEY, []))

    def history(self) -> list[dict[str, Any]]:
        """Return the changes of the verdict, including changes before rollbacks; see `CollapseWatcher.history`."""
        return [*self.rollbacks, *self.watcher.history()]

    def advance_stage(self) -> None:
        """Restore the last healthy checkpoint after a collapse, else start the next stage (first process only)."""
        if not self._can_roll_back():
            self.console.say(self.method.next_stage_message)
            return
        verdict = self._verdict
        assert verdict is not None
        settings, origins = self.setup.settings, dict(self.setup.origins)
        link_or_copy(self.run.last.with_name(HEALTHY_CHECKPOINT), self.run.last)
        entry = {"epoch": self.run.read_rows()[-1]["epoch"], "kind": verdict.kind, "sentence": verdict.sentence}
        reason = f"rollback {len(self.rollbacks) + 1}, after {verdict.kind}"
        # Store settings that counteract the collapse.
        changes = self.method.settings_after_collapse(settings, verdict.kind)
        store_changes(self.run, replace(settings, **changes), origins | dict.fromkeys(changes, reason))
        config = self.run.read_yaml(self.run.config.name)
        self.run.write_yaml(self.run.config.name, {**config, ROLLBACKS_KEY: [*self.rollbacks, entry]})
        # The metrics of epochs after the healthy checkpoint must not affect later verdicts.
        self.run.write_rows(checkpoint_rows(self.run.last))
        values = ", ".join(f"{name.replace('_', ' ')} {value:.5g}" for name, value in changes.items())
        self.console.say(f"{reason}: back to the last healthy state, with {values}")

    def stop_message(self) -> list[str]:
        """Return lines that say why the run was stopped and what to do; empty if the run was not stopped."""
        start, newest = self._scores
        if self._worse_epochs >= MAX_WORSE_EPOCHS and start is not None and newest is not None:
            return [
                "stopped, because training makes the weights worse: nearest neighbours classify "
                f"{percent(newest)} of the monitor's images correctly, down from {percent(start)} at the start.",
                "Use the weights that the run started from, or start again with a lower --lr or a larger --freeze.",
            ]
        if self._verdict is None or self.setup.settings.on_collapse == "warn":
            return []
        return [f"stopped because of {self._verdict.sentence}", self._verdict.advice]

    def _count_worse_epochs(self, row: Mapping[str, float]) -> float | None:
        """Count the epochs in a row that score below trained initial weights; return the score of these weights."""
        start = self.load_start_score() if expects_healthy_start(self.setup) else None
        is_worse = start is not None and row.get(KNN_SCORE, start) < start - MAX_ACCURACY_LOSS
        self._worse_epochs = self._worse_epochs + 1 if is_worse else 0
        return start

    def _can_roll_back(self) -> bool:
        collapsed = self._verdict is not None and self.setup.settings.on_collapse == "rollback"
        has_healthy_state = self.run.last.with_name(HEALTHY_CHECKPOINT).exists()
        return collapsed and len(self.rollbacks) < MAX_ROLLBACKS and has_healthy_state


def expects_healthy_start(setup: PretrainingSetup) -> bool:
    """Return whether the run starts from trained weights, with a method whose health metrics need no trained heads."""
    report = setup.load_report
    return report is not None and not report.undertrained and method_of(setup.settings).healthy_from_start


def health_scale(setup: PretrainingSetup) -> RunScale:
    """Return the feature dimension, batch size and grace period that set the limits of healthy metrics."""
    settings, plan = setup.settings, setup.plan
    warmup = round(settings.warmup_epochs * plan.steps_per_epoch)
    dim = setup.objective.backbones()[0].dim
    grace = 0 if expects_healthy_start(setup) else grace_period(plan.total_steps, warmup)
    return RunScale(dim, settings.batch_size, grace)


def add_missing_parameters(run: RunFolder, objective: Objective) -> None:
    """Add parameters of an objective that a run's checkpoint lacks, so that the objective can resume from it."""
    state = load_checkpoint(run.last)
    parameters = {OBJECTIVE_PREFIX + name: value for name, value in objective.state_dict().items()}
    if parameters.keys() <= state["state_dict"].keys():
        return
    state["state_dict"] = {name: state["state_dict"].get(name, value) for name, value in parameters.items()}
    state["optimizer_states"] = [_renumber(optimizer_state, objective) for optimizer_state in state["optimizer_states"]]
    write_atomically(run.last, lambda file: torch.save(state, file))


def _renumber(optimizer_state: dict[str, Any], objective: Objective) -> dict[str, Any]:
    """Return the optimizer state with its parameters renumbered to match the parameter groups of an objective."""
    numbers = [number for group in optimizer_state["param_groups"] for number in group["params"]]
    names = [name for group in optimizer_state["param_groups"] for name in group["names"]]
    moments = {
        name: optimizer_state["state"][number]
        for name, number in zip(names, numbers, strict=True)
        if number in optimizer_state["state"]
    }
    old_groups = {(group["label"], group["decayed"]): group for group in optimizer_state["param_groups"]}
    state, groups = {}, []
    for group in parameter_groups(objective, objective.parameter_group, objective.decays_tables):
        first = sum(len(earlier["params"]) for earlier in groups)
        indices = list(range(first, first + len(group["names"])))
        state |= {index: moments[name] for index, name in zip(indices, group["names"], strict=True) if name in moments}
        old_group = old_groups.get((group["label"], group["decayed"]), optimizer_state["param_groups"][0])
        groups.append({**old_group, **{key: group[key] for key in ("names", "label", "decayed")}, "params": indices})
    return {**optimizer_state, "state": state, "param_groups": groups}
