"""`paucal study list` and `paucal study show`: all studies with their requirements."""

from rich.table import Table

from paucal.recipes import detection, esvit, segmentation
from paucal.recipes.table import RECIPES
from paucal.studies.plan import plan_runs
from paucal.studies.reading import data_sets, find_study, studies
from paucal.studies.study import TIMED_METRICS, Study
from paucal.studies.words import (
    FORMULA,
    caveats,
    describe_run,
    describe_settings,
    format_hours,
    format_published,
    gpu_hours,
)

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
        >>> from paucal.studies.reading import find_study
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
