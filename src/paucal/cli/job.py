"""Run the job of a training command: print its config, resume a run, or begin a new run."""

from paucal.cli.arguments import ParsedRun
from paucal.runner.console import Console
from paucal.runner.job import AnyJob
from paucal.runner.life import Stopped, begin, resume, show_config
from paucal.runner.run_time import command_start


def run_job(job: AnyJob, parsed: ParsedRun) -> int:
    """Run a job with parsed arguments; return the exit code, which is 130 if the run was stopped."""
    values, given, given_settings = parsed
    if values.print_config:
        print(show_config(job, job.settings_type(**given_settings), given), end="")
        return 0
    if "resume" in given:
        result = resume(job, values.resume, Console(), given_settings)
    else:
        result = begin(job, job.settings_type(**given_settings), given, Console(), start_time=command_start())
    return 130 if isinstance(result, Stopped) else 0
