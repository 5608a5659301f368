"""Running the job of a training verb: print its config, resume a run, or begin a new run."""

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

    Args:
        job: Job of the verb.
        settings: Class of the verb's settings.
        parsed: Result of `parse_run`.
        start: Time from which the duration of a new run is counted, in seconds of `time.monotonic()`; None for now.
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
