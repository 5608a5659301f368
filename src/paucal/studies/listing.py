"""`paucal study list` and `paucal study show`: what there is, and what it needs."""

from collections.abc import Sequence

from rich.table import Table

from paucal.recipes import detection, esvit, segmentation
from paucal.recipes.table import RECIPES
from paucal.studies.cost import FORMULA
from paucal.studies.plan import Planned, plan
from paucal.studies.registry import data_sets, find_study, studies
from paucal.studies.study import Study
from paucal.studies.words import (
    caveats,
    cost_words,
    how_to_get,
    missing_sets,
    published,
    run_words,
    settings_words,
    status,
)

MOST_COLUMNS = 10  # that a terminal can show side by side


def overview() -> tuple[Table, list[str]]:
    """Return all studies as a table, and sentences on what is missing and how to get it."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("study", "about", "as published", "GPU hours", "smaller"):
        table.add_column(heading, justify="right" if heading == "GPU hours" else "left", no_wrap=heading == "study")
    known, sets = studies(), data_sets()
    for study in known.values():
        table.add_row(study.name, study.title, status(study, sets), cost_words(study, sets), _scales(study))
    missing = dict.fromkeys(name for study in known.values() for name in missing_sets(study, sets))
    words = [FORMULA[0].upper() + FORMULA[1:] + "."]
    words += [f"{name}: {sets[name].title}. {sets[name].how}." for name in missing]
    words.append("The smaller scales need none of this: stand-ins take the place of models and images.")
    words.append("'paucal study show NAME' prints the published numbers and the settings of a study.")
    return table, words


def show(name: str) -> tuple[Table | None, list[str]]:
    """Return the published numbers of a study, and sentences about it, the first of which is its title.

    Raises:
        UserError: there is no such study.
    """
    study, sets = find_study(name), data_sets()
    words = [f"{study.title}: {study.paper}, {study.where} ({study.source})"]
    words.append(f"as published: {status(study, sets)}")
    words += [f"  {text}" for text in how_to_get(study, sets)]
    if study.trains:
        words.append(f"cost at full scale: about {cost_words(study, sets)} GPU hours by arithmetic")
        words.append(f"smaller scales: {_scales(study) if study.scales else f'none, since {study.without}'}")
        runs = plan(study, "full", sets)
        words += [f"recipe {name}: {source}" for name, source in _readings(runs).items()]
        words.append("settings at full scale:")
        words += _settings(runs)
    words += [f"by hand: {study.see}"] if study.see else []
    return _numbers(study), [*words, *caveats(study, None)]


def _readings(runs: Sequence[Planned]) -> dict[str, str]:
    """Return where the values of the recipes of some runs are from, by recipe."""
    known = {**RECIPES, **esvit.RECIPES, **detection.RECIPES, **segmentation.RECIPES}
    names = dict.fromkeys(str(run.settings["recipe"]) for run in runs if run.settings.get("recipe"))
    return {name: known[name].source for name in names}


def _settings(runs: Sequence[Planned]) -> list[str]:
    """Return a sentence for each run, one for those that differ by their images alone."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        found.setdefault((run_words(run), settings_words(run.settings)), []).append(run.data)
    return [f"  {name} ({', '.join(dict.fromkeys(data))}): {words}" for (name, words), data in found.items()]


def _numbers(study: Study) -> Table | None:
    if not study.rows:
        return None
    lines = [["", *(column.name for column in study.columns)]]
    for row in study.rows:
        deviations = row.deviations or (None,) * len(row.values)
        lines.append([row.name, *map(published, row.values, deviations)])
    if len(study.columns) > MOST_COLUMNS and len(study.rows) < len(study.columns):
        lines = [list(line) for line in zip(*lines, strict=True)]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in lines[0]:
        table.add_column(heading, justify="right" if heading else "left")
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _scales(study: Study) -> str:
    return ", ".join(study.scales) or "-"
