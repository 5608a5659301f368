"""Sentences about the runs of a study: descriptions, costs, and caveats.

The cost at full scale is estimated from the multiply-adds of the models. A training step costs as much as three forward
passes: one for the forward pass, and two for the gradients of activations and of weights. Pre-training with two crops
of 224 pixels and eight crops of 96 pixels costs 12.4 forward passes at 224 pixels, without the heads. The student's
forward passes cost 2 + 8 (96 / 224)^2 = 3.5 forward passes. This cost is multiplied by three to include the gradients.
The teacher's forward passes cost 2. A multiply-add counts as two operations.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paucal.settings.options import flag_words
from paucal.studies.plan import PlannedRun
from paucal.studies.reading import data_sets
from paucal.studies.study import COUNTED_METRICS, Scale, Study, Value
from paucal.wording import counted

GPU_RATE = 50e12  # assumed number of operations per second that one GPU reaches with these models in bfloat16
# Cost, in forward passes, of training on one image for one epoch (or of evaluating one image), by kind of study.
FORWARD_PASSES = {
    "train": 3.0,
    "pretrain": 3 * (2 + 8 * (96 / 224) ** 2) + 2,
    "detect": 3.0,
    "segment": 3.0,
    "frozen": 1.0,
}
FORMULA = (
    "GPU hours = runs x epochs x images x passes x 2 x multiply-adds / 50 TFLOP/s, with 3 passes per image in "
    "training, 12.4 in pre-training and 1 in evaluation; this is an estimate for one GPU like an A100 in bfloat16"
)
# Word that precedes "run" in messages, by kind of study.
RUN_NAMES = {"train": "training", "pretrain": "pre-training", "frozen": "evaluation"}
RUN_NAMES |= {"detect": "detector", "segment": "segmenter"}


def without_jobs_0(command: str) -> str:
    """Return a command without `--jobs 0`, so that the command computes the runs.

    Example:
        >>> without_jobs_0("paucal study drloc-table-9 --jobs 0 --seeds 0 1")
        'paucal study drloc-table-9 --seeds 0 1'
    """
    return re.sub(r" --jobs[ =]0(?= |$)", "", command)


def describe_cost(study: Study, runs: Sequence[PlannedRun], seeds: int) -> str:
    """Return a sentence on the cost of runs at full scale."""
    return f"these runs take about {format_hours(gpu_hours(study, runs, seeds))} GPU hours (estimated)"


def gpu_hours(study: Study, runs: Sequence[PlannedRun], seeds: int) -> float:
    """Return the hours that runs take on one GPU at full scale, with `seeds` seeds each, according to `FORMULA`."""
    passes = seeds * sum(
        run.epochs * data_sets()[run.data].train * FORWARD_PASSES[study.kind] * study.models[run.row.model].gmacs
        for run in runs
    )
    return 2e9 * passes / GPU_RATE / 3600


def format_hours(hours: float) -> str:
    """Return hours as text, with one decimal below 10."""
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def describe_scale(study: Study, small: Scale | None, runs: Sequence[PlannedRun], seeds: int) -> str:
    """Return a sentence on the number and size of the runs of a call, with `seeds` seeds each."""
    run_count, per_run = counted(len(runs), f"{RUN_NAMES[study.kind]} run"), f"{counted(seeds, 'seed')} each"
    if small is None:
        return f"{study.name} as published: {run_count}, {per_run}"
    size = ""
    if study.kind != "frozen":
        length = _format_range(run.epochs for run in runs)
        sides = _format_range(max(run.settings.get("img_size", [small.side])) for run in runs)
        fewer = "" if study.kind == "train" else " (fewer epochs for a larger set, but at least one)"
        size = f", {sides} pixels, {length} epochs of up to {small.images} images{fewer}"
    text = f"{study.name} with stand-ins: {run_count}{size}, {per_run}"
    starts = list(dict.fromkeys(run.row.start for run in runs if run.row.start))
    training = small.start_training
    if not starts or training is None:
        return text
    images = f"up to {training.images} images of" if training.data else "the same images at"
    return f"{text}; first their initial weights ({', '.join(starts)}), on {images} {training.side} pixels"


def _format_range(numbers: Iterable[int]) -> str:
    values = list(numbers)
    return f"{min(values)}" if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


def caveats(study: Study, small: Scale | None, seeds: int = 1) -> list[str]:
    """Return sentences on what the numbers of a study, with `seeds` seeds of each run, do not show."""
    lines = []
    if small is not None:
        lines.append(study.telling)
        if seeds == 1:
            has_intervals = study.kind not in ("pretrain", "frozen")
            numbers = "the intervals are for other test images and say" if has_intervals else "the numbers say"
            lines.append(
                f"Each row has only one seed: {numbers} nothing about the variation between seeds; use --seeds 0 1 2."
            )
        columns = study.trained_columns
        if skipped := [column.name for column in columns if column.data != columns[0].data]:
            lines.append(
                f"One set of images replaces all data sets, so {', '.join(skipped)}, which differ only in their data, "
                "are not run."
            )
        if any(column.metric in COUNTED_METRICS for column in study.columns):
            lines.append("Parameters and multiply-adds are counted on the published models, not on stand-ins.")
    lines += [f"Of the published numbers: {text}" for text in study.misprints]
    lines += [study.note] if study.note else []
    return lines + [f"{row.name}: {row.note}" for row in study.rows if row.note]


def describe_run(run: PlannedRun) -> str:
    """Return the name of a run, with the name of its initial weights if it does not start from random weights."""
    return f"{run.name}, started from {run.row.start}" if run.row.start else run.name


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Return the settings of a run as flags of the command line."""
    return shlex.join(argument for name, value in settings.items() for argument in flag_words(name, value))


def format_published(value: Value, deviation: float | None = None) -> str:
    """Return a published value as text.

    Example:
        >>> [format_published(value) for value in (1281167.0, None, "cosine")] + [format_published(85.62, 0.05)]
        ['1281167', '-', 'cosine', '85.62 ± 0.05']
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    text = f"{value:.0f}" if value == int(value) else f"{value:.10g}"
    return text if deviation is None else f"{text} ± {deviation:g}"
