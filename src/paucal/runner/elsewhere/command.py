"""The command that other machines call to begin a run, and call again to resume the run until it has finished."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from paucal.data.shards.folders import is_remote
from paucal.runs import RunFolder
from paucal.runs.folder import create_next_numbered, is_nonempty, open_run
from paucal.runs.lock import is_locked
from paucal.types import UserError

# Flags that are left out of the command for other machines, mapped to whether the flag takes several values
_CLUSTER_FLAGS = {
    "--on": False,
    "--slurm": True,
    "--print-script": False,
    "--output": False,
    "--out": False,
    "--resume": False,
}
_PROCESS_FLAGS = {"--devices": False, "--nodes": False}  # also left out, since the launcher sets these values
LOGS_SUFFIX = ".jobs"  # the folder with the logs is the path of the run folder with this suffix
_PR_SET_PDEATHSIG = 1  # Linux's prctl option for the signal that is sent when the parent process ends


@dataclass(frozen=True)
class Command:
    """A paucal command that begins a run, or resumes the run if it has saved a checkpoint."""

    verb: str
    # All arguments except the name of the command, the run folder and the flags that choose machines
    words: tuple[str, ...]
    run: str  # absolute path of the run folder, which must be on a disk that all machines share
    folder: str  # working directory in which the command runs
    resumes: bool = False  # whether the user asked to resume an existing run

    @property
    def logs(self) -> Path:
        """Folder with the logs of all processes of this command."""
        return Path(self.run + LOGS_SUFFIX)

    def arguments(self) -> list[str]:
        """Return the arguments of the next call: to resume if the run has a checkpoint, otherwise to begin the run."""
        is_resumed = self.resumes or RunFolder(Path(self.run)).last.exists()
        return self.resume_words() if is_resumed else self.begin_words()

    def resume_words(self) -> list[str]:
        """Return the name of the command and the arguments that resume the run."""
        return [self.verb, "--resume", self.run, *(self.words if self.resumes else ())]

    def begin_words(self) -> list[str]:
        """Return the name of the command and the arguments that begin the run, even if an earlier call has begun it."""
        # `words` come last, since they may end with `-- DATA`.
        return [self.verb, "--output", self.run, "--overwrite", *self.words]

    def start(self, environment: Mapping[str, str] | None = None, log: str | None = None) -> "subprocess.Popen[bytes]":
        """Start the command in a child process, which is killed if this process dies.

        Its output is appended to the file `log` in the folder `logs`, or is not redirected if `log` is None.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "paucal.cli.main", *self.arguments()]
        variables = {**os.environ, **(environment or {})}
        with nullcontext() if log is None else (self.logs / log).open("ab") as file:
            return subprocess.Popen(
                command, cwd=self.folder, env=variables, stdout=file, stderr=file, preexec_fn=_end_with_parent
            )


def command_of(verb: str, argv: Sequence[str], output: str | None, resumed: str | None) -> Command:
    """Return the command for other machines, with a new run folder if neither `output` nor `resumed` names one."""
    for location in (output, resumed):
        if location is not None and is_remote(location):
            raise UserError(
                f"{location!r} is on object storage, but --on needs a run folder on a disk that all machines share."
            )
    arguments = tuple(without_flags(argv, _CLUSTER_FLAGS | _PROCESS_FLAGS))
    working_folder = os.getcwd()
    if resumed is not None:
        run = open_run(resumed)
        if run.finished:
            raise UserError(f"the run {str(run.path)!r} is finished: start a new run with 'paucal {verb}'.")
        return Command(verb, arguments, str(run.path.resolve()), working_folder, resumes=True)
    if output is not None and is_nonempty(path := Path(output)):
        run = RunFolder(path)
        has_results = run.last.exists() or run.card.exists() or run.finished or is_locked(path)
        if has_results or not run.config.is_file():  # a run without any results may be started again
            raise UserError(
                f"--output: {output!r} exists already: resume that run with --resume, or choose another folder."
            )
    if "--overwrite" in arguments:
        raise UserError("--overwrite is not supported with --on: choose a new --output.")
    path = create_next_numbered(Path("runs")) if output is None else Path(output)
    return Command(verb, arguments, str(path.resolve()), working_folder)


def without_flags(argv: Sequence[str], flags: Mapping[str, bool]) -> list[str]:
    """Return command-line arguments without some flags and the values of these flags.

    `flags` maps each flag to be removed to whether the flag takes several values.

    Example:
        >>> without_flags(["photos", "--on", "slurm", "--slurm", "a=1", "b=2", "--epochs", "3"], _CLUSTER_FLAGS)
        ['photos', '--epochs', '3']
    """
    remaining, values_to_skip = [], 0
    for position, argument in enumerate(argv):
        name, equals, _ = argument.partition("=")
        if argument == "--":  # the remaining arguments are not flags
            return [*remaining, *argv[position:]]
        if argument.startswith("-"):
            values_to_skip = 0
            if (name := name.replace("_", "-")) in flags:
                values_to_skip = 0 if equals else sys.maxsize if flags[name] else 1
                continue
        if values_to_skip:
            values_to_skip -= 1
            continue
        remaining.append(argument)
    return remaining


def _end_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, so that no process of a failed job continues."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
