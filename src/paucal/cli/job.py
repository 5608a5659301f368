"""Run the job of a training command: print its config, resume a run, or begin a new run."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from paucal.runner.console import Console
from paucal.runner.job import AnyJob
from paucal.runner.life import Stopped, begin, resume, show_config
from paucal.runner.run_time import command_start


def run_job(job: AnyJob, parsed: tuple[Namespace, Mapping[str, str], Mapping[str, Any]]) -> int:
    """Run a job with the result of `parse_run_arguments`; return the exit code, which is 130 if the run was stopped."""
    values, given, changes = parsed
    if values.print_config:
        print(show_config(job, job.settings_type(**changes), given), end="")
        return 0
    if "resume" in given:
        result = resume(job, values.resume, Console(), changes)
    else:
        result = begin(job, job.settings_type(**changes), given, Console(), start_time=command_start())
    return 130 if isinstance(result, Stopped) else 0
