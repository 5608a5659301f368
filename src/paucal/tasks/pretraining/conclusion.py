"""The end of a pre-training run: curves, summary and page."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.distributed import rank
from paucal.evaluation.collapse import Verdict
from paucal.evaluation.curves import health_figure, save_curves
from paucal.evaluation.plots import save_figure
from paucal.methods.pretraining import method_of
from paucal.report.pretraining import write_pretraining_report
from paucal.runner.console import Console
from paucal.runner.job import FinishedRun
from paucal.runner.processes import wait_for_all
from paucal.runs import RunFolder
from paucal.tasks.pretraining.assembly import PretrainingSetup
from paucal.tasks.pretraining.crops import describe_crops
from paucal.tasks.pretraining.monitor import NAME
from paucal.tasks.pretraining.stage_watch import StageWatch
from paucal.training import Outcome
from paucal.wording import counted, percent


@dataclass(frozen=True)
class PretrainResult(FinishedRun):
    """The result of a finished pre-training run.

    Attributes:
        folder: Run folder; its model is the teacher's backbone after the last epoch.
        last: Metrics of the last epoch.
        verdict: Verdict on the networks at the end; None if they are healthy.
        seconds: Seconds of training.
    """

    last: Mapping[str, float]
    verdict: Verdict | None
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last epoch: losses, health, and "val_knn" with a monitor."""
        return dict(self.last)


def conclude(
    run: RunFolder, setup: PretrainingSetup, outcome: Outcome, stage_watch: StageWatch, console: Console
) -> PretrainResult:
    """Draw the curves and write the results on the first process, while the others wait."""
    last = outcome.rows[-1] if outcome.rows else {}
    verdict = stage_watch.watcher.verdict
    if rank() == 0:
        chance = {f"train_{name}": value for name, value in setup.objective.chance_levels().items()}
        save_curves(run, outcome.rows, len(setup.data.part("train")), chance=chance)
        prototypes = method_of(setup.settings).prototypes(setup.settings)
        dim = setup.objective.backbones()[0].dim
        save_figure(run.plots / "health.png", health_figure(outcome.rows, prototypes, dim, verdict))
        run.write_json("summary.json", summary(run, setup, outcome, verdict, stage_watch))
        page = write_pretraining_report(run.path)
        for line in closing_lines(run, setup, outcome, verdict, page):
            console.say(line)
    wait_for_all()
    return PretrainResult(run.path, last, verdict, outcome.seconds)


def summary(
    run: RunFolder, setup: PretrainingSetup, outcome: Outcome, verdict: Verdict | None, stage_watch: StageWatch
) -> dict[str, Any]:
    """Return the content of `summary.json`, which the page shows."""
    settings, data = setup.settings, setup.data
    # None without a monitor, and NaN if features were not finite.
    score = outcome.rows[-1].get(NAME)
    return {
        **setup.summarise(outcome),
        "title": f"{setup.card.backbone.name} pre-trained on {data.images.name}",
        "kind": "pretraining",
        "method": method_of(settings).title(settings),
        "data": f"{data.images.name}: {counted(len(data.part('train')), 'image')}",
        "parts": {name: count for name, count in data.counts().items() if count},
        "grid": setup.grid_text,
        "crops": describe_crops(settings),
        "out_dim": method_of(settings).prototypes(settings),
        "feature_dim": setup.objective.backbones()[0].dim,
        "epochs": settings.epochs,
        "monitor": settings.monitor,
        "knn_start": stage_watch.knn_start(),
        "knn_end": score if score is not None and math.isfinite(score) else None,
        "verdict": None if verdict is None else vars(verdict),
        "verdicts": stage_watch.history(),
        "rollbacks": len(stage_watch.rollbacks),
        "next_steps": next_steps(run),
    }


def closing_lines(
    run: RunFolder, setup: PretrainingSetup, outcome: Outcome, verdict: Verdict | None, page: Path
) -> list[str]:
    """Return the last lines to print: the outcome, its folder, and the next commands."""
    last = outcome.rows[-1]
    state = "the networks look healthy" if verdict is None else f"{verdict.sentence} {verdict.advice}"
    neighbours = f"; nearest neighbours {percent(last[NAME])} on {setup.settings.monitor}" if NAME in last else ""
    return [
        "",
        f"pre-trained: {setup.describe()}, epochs: {setup.settings.epochs}, {outcome.seconds:.0f} s{neighbours}",
        state,
        f"results are in {run.path}: {page.name} (open it in a browser), {run.weights.name} (the "
        "backbone after the last epoch), metrics.csv, plots/",
        "try next:",
        *(f"  {step}" for step in next_steps(run)),
    ]


def next_steps(run: RunFolder) -> list[str]:
    """Return commands to run next."""
    path = shlex.quote(str(run.path))
    return [
        f"paucal train photos/ --init {path}     # fine-tune it on labelled images",
        f"paucal eval {path} photos/ --protocol knn linear     # evaluate its frozen features",
    ]
