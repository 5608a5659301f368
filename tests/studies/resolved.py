"""The runs of a study with the settings that their verbs have checked, for tests of what studies ask for."""

from typing import Any

from timm import is_model

from paucal.settings.options import check_ranges
from paucal.studies.plan import plan_runs
from paucal.studies.reading import studies
from paucal.tasks.table import job_of
from paucal.verbs.eval.settings import EvalSettings


def checked(name: str, scale: str) -> list[tuple[str, Any]]:
    """Return the settings of all runs as the verb that makes them has checked them."""
    study = studies()[name]
    found = []
    for run in plan_runs(study, scale):
        values = dict(run.settings)
        if run.row.maps:
            values["labels"] = "maps"
        if study.kind == "frozen":
            check_ranges(EvalSettings(**{key: value for key, value in values.items() if key != "init"}))
            assert is_model(values["model"]), run.name
            continue
        if run.row.start:
            values = {"init": "run", **values}
        if study.kind in ("detect", "segment"):
            values = {"data": "images", **values}
        job = job_of(study.kind)
        settings, _ = job.check(job.settings_type(**values), dict.fromkeys(values, "given"))
        found.append((run.name, settings))
    return found
