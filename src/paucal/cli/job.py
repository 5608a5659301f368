"""Run the job of a training command: print its config, resume a run, or begin a new run."""

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
    """Run a job and return the exit code, which is 130 if the run was stopped before its end.

    Args:
        job: Job of the command.
        settings: Settings class of the command.
        parsed: Result of `parse_run_arguments`.
        start: Start time of a new run in seconds of `time.monotonic()`, from which the duration of the run is measured;
            None for the current time.
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
