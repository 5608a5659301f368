"""The common actions of verbs that train: print the config, resume a run, or begin one."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from paucal.runner.console import Console
from paucal.runner.job import AnyJob
from paucal.runner.life import Stopped, begin, resume, show_config


def run_job(
    job: AnyJob,
    settings: type,
    parsed: tuple[Namespace, Mapping[str, str], Mapping[str, Any]],
    start: float | None = None,
) -> int:
    """Run a job and return the exit code, 130 if it was stopped before its end.

    `parsed` is the result of `parse_run`; the time of a new run starts at `start` on the clock `time.monotonic()`.
    """
    values, given, changes = parsed
    if values.print_config:
        print(show_config(job, settings(**changes), given), end="")
        return 0
    if "resume" in given:
        result = resume(job, values.resume, Console(), changes)
    else:
        result = begin(job, settings(**changes), given, Console(), start=start)
    return 130 if isinstance(result, Stopped) else 0
