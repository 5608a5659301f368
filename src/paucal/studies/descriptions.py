"""Output of `paucal study list` and `paucal study show`, and sentences on the costs and caveats of a study's runs.

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

from rich.table import Table

from paucal.recipes import detection, esvit, segmentation
from paucal.recipes.table import RECIPES
from paucal.settings.options import flag_words
from paucal.studies.plan import PlannedRun, plan_runs
from paucal.studies.reading import data_sets, find_study, studies
from paucal.studies.study import COUNTED_METRICS, TIMED_METRICS, Scale, Study, Value
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
MAX_COLUMNS = 10  # a table with more columns is transposed if it has fewer rows than columns, to fit on a terminal


def list_studies() -> tuple[Table, list[str]]:
    """Return a table of all studies, and sentences on the data sets that must be downloaded by hand."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("study", "about", "as published", "GPU hours", "smaller"):
        table.add_column(heading, justify="right" if heading == "GPU hours" else "left", no_wrap=heading == "study")
    all_studies, sets = studies(), data_sets()
    for study in all_studies.values():
        scales = ", ".join(study.scales) or "-"
        table.add_row(study.name, study.title, describe_status(study), describe_hours(study), scales)
    missing = dict.fromkeys(name for study in all_studies.values() for name in missing_sets(study))
    sentences = [FORMULA[0].upper() + FORMULA[1:] + "."]
    sentences += [f"{name}: {sets[name].title}. {sets[name].how}." for name in missing]
    sentences.append("The smaller scales need no downloads by hand, since stand-ins replace models and images.")
    sentences.append("'paucal study show NAME' prints the published numbers and the settings of a study.")
    return table, sentences


def show(name: str) -> tuple[Table | None, list[str]]:
    """Return a table of a study's published numbers (None if it has none), and sentences about the study."""
    study = find_study(name)
    sentences = [f"{study.title}: {study.paper}, {study.where} ({study.source})"]
    sentences.append(f"as published: {describe_status(study)}")
    sentences += [f"  {text}" for text in how_to_get(study)]
    if study.trains:
        sentences.append(f"cost at full scale: about {describe_hours(study)} GPU hours (estimated)")
        sentences.append(f"smaller scales: {', '.join(study.scales) or f'none, since {study.without}'}")
        recipes = {**RECIPES, **esvit.RECIPES, **detection.RECIPES, **segmentation.RECIPES}
        runs = plan_runs(study, "full")
        names = dict.fromkeys(str(run.settings["recipe"]) for run in runs if run.settings.get("recipe"))
        sentences += [f"recipe {name}: {recipes[name].source}" for name in names]
        sentences.append("settings at full scale:")
        data_by_settings: dict[tuple[str, str], list[str]] = {}
        for run in runs:
            data_by_settings.setdefault((describe_run(run), describe_settings(run.settings)), []).append(run.data)
        for (run, flags), data in data_by_settings.items():
            sentences.append(f"  {run} ({', '.join(dict.fromkeys(data))}): {flags}")
    sentences += [f"to reproduce by hand: {study.see}"] if study.see else []
    return _published_table(study), [*sentences, *caveats(study, None)]


def _published_table(study: Study) -> Table | None:
    if not study.rows:
        return None
    lines = [["", *(column.name for column in study.columns)]]
    for row in study.rows:
        deviations = row.deviations or (None,) * len(row.values)
        lines.append([row.name, *map(format_published, row.values, deviations)])
    if len(study.columns) > MAX_COLUMNS and len(study.rows) < len(study.columns):
        lines = [list(line) for line in zip(*lines, strict=True)]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in lines[0]:
        table.add_column(heading, justify="right" if heading else "left")
    for line in lines[1:]:
        table.add_row(*line)
    return table


def describe_status(study: Study) -> str:
    """Return a short text that says whether a study can be run as published, and what the user must provide.

    Example:
        >>> [describe_status(find_study(name)) for name in ("drloc-table-2a", "drloc-table-12")]
        ['runnable', 'needs data: ade20k; trained weights']
    """
    if any(column.metric in TIMED_METRICS for column in study.columns):
        return "runnable (timed on this device, nothing is trained)"
    if study.kind == "count":
        return "runnable (parameters and operations are counted, nothing is trained)"
    if study.kind == "facts":
        return "reference table; nothing to run"
    if study.kind in ("pictures", "command"):
        return "by hand"
    missing = missing_sets(study)
    requirements = [f"data: {', '.join(missing)}"] if missing else []
    requirements += ["trained weights"] if any(not start.init for start in study.starts.values()) else []
    requirements += ["label maps"] if any(row.maps for row in study.trained_rows) else []
    return f"needs {'; '.join(requirements)}" if requirements else "runnable"


def missing_sets(study: Study) -> list[str]:
    """Return the names of the data sets that a study needs at full scale and that must be downloaded by hand."""
    return [name for name in study.data_sets if data_sets()[name].how]


def how_to_get(study: Study) -> list[str]:
    """Return lines on how to get the data sets, initial weights and label maps that a study needs at full scale."""
    sets = data_sets()
    lines = [f"{sets[name].title} ({name}): {sets[name].how}" for name in missing_sets(study)]
    for name, start in study.starts.items():
        automatic = "automatic, or " if start.init else ""
        lines.append(f"{name}: initial weights are {start.words}: {automatic}--init {name}=RUN")
    if any(row.maps for row in study.trained_rows):
        lines.append("label maps of the training images: 'paucal label DATA --teacher ...', then --labels FOLDER")
    return lines


def describe_hours(study: Study) -> str:
    """Return the GPU hours of a study at full scale as text; "-" if the study has no runs."""
    if not study.trains:
        return "-"
    return format_hours(gpu_hours(study, plan_runs(study, "full"), len(study.seeds)))


def without_jobs_0(command: str) -> str:
    """Return a command without `--jobs 0`, so that the command computes the runs.

    Example:
        >>> without_jobs_0("paucal study drloc-table-9 --jobs 0 --seeds 0 1")
        'paucal study drloc-table-9 --seeds 0 1'
    """
    return re.sub(r" --jobs[ =]0(?= |$)", "", command)


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
