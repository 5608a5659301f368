"""The command of a run, started on other machines again and again until the run has ended."""

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
from paucal.runs.folder import is_taken, next_numbered, open_run
from paucal.runs.lock import is_locked
from paucal.types import UserError

# Flags that are not passed to the started command, and whether they take several words.
_CLUSTER_FLAGS = {
    "--on": False,
    "--slurm": True,
    "--print-script": False,
    "--output": False,
    "--out": False,
    "--resume": False,
}
_PROCESS_FLAGS = {"--devices": False, "--nodes": False}  # set by the program that starts the processes
LOGS_SUFFIX = ".jobs"  # suffix of the folder with the logs, beside the run
_PR_SET_PDEATHSIG = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Command:
    """A command of paucal that starts one run, or resumes it if it was started before.

    Attributes:
        words: Its arguments, without the machines and the run folder.
        run: Full path of the run folder, which all machines see.
        folder: Folder in which it is called.
        resumes: Whether the run exists already and is only resumed.
    """

    verb: str
    words: tuple[str, ...]
    run: str
    folder: str
    resumes: bool = False

    @property
    def logs(self) -> Path:
        """Folder of the logs of all starts."""
        return Path(self.run + LOGS_SUFFIX)

    def arguments(self) -> list[str]:
        """Return the arguments of the next start: a run with a saved state is resumed, else it begins again."""
        is_resumed = self.resumes or RunFolder(Path(self.run)).last.exists()
        return self.resume_words() if is_resumed else self.begin_words()

    def resume_words(self) -> list[str]:
        """Return the verb and the arguments that resume the run."""
        return [self.verb, "--resume", self.run, *(self.words if self.resumes else ())]

    def begin_words(self) -> list[str]:
        """Return the verb and the arguments that begin the run, also after a start that saved no state."""
        return [self.verb, "--output", self.run, "--overwrite", *self.words]  # the words may end with `-- DATA`

    def start(self, environment: Mapping[str, str] | None = None, log: str | None = None) -> "subprocess.Popen[bytes]":
        """Start the command in a process that ends with this one; `environment` adds to its variables.

        Its output goes to the file `log` in `logs`, or where that of this process goes.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "paucal.cli.main", *self.arguments()]
        variables = {**os.environ, **(environment or {})}
        with nullcontext() if log is None else (self.logs / log).open("ab") as file:
            return subprocess.Popen(
                command, cwd=self.folder, env=variables, stdout=file, stderr=file, preexec_fn=_end_with_parent
            )


def command_of(verb: str, argv: Sequence[str], output: str | None, resumed: str | None) -> Command:
    """Return the command for other machines, and reserve its run folder."""
    for place in (output, resumed):
        if place is not None and is_remote(place):
            raise UserError(
                f"{place!r} is object storage, and --on needs a run folder on a disk that all machines share."
            )
    arguments = tuple(without_flags(argv, _CLUSTER_FLAGS | _PROCESS_FLAGS))
    working_folder = os.getcwd()
    if resumed is not None:
        run = open_run(resumed)
        if run.finished:
            raise UserError(f"the run {str(run.path)!r} is finished; start another with 'paucal {verb}'.")
        return Command(verb, arguments, str(run.path.resolve()), working_folder, resumes=True)
    if output is not None and is_taken(Path(output)) and not _has_saved_nothing(Path(output)):
        raise UserError(f"--output: {output!r} exists already: resume it with --resume, or choose another folder.")
    if "--overwrite" in arguments:
        raise UserError("--overwrite is not supported with --on: choose a new --output.")
    path = next_numbered(Path("runs")) if output is None else Path(output)
    return Command(verb, arguments, str(path.resolve()), working_folder)


def _has_saved_nothing(path: Path) -> bool:
    """Return whether a run was killed before it saved anything, so that it may begin again."""
    run = RunFolder(path)
    return run.config.is_file() and not (run.last.exists() or run.card.exists() or run.finished or is_locked(path))


def without_flags(argv: Sequence[str], flags: Mapping[str, bool]) -> list[str]:
    """Return arguments without some flags, which take several words or not, and without their values.

    Example:
        >>> without_flags(["photos", "--on", "slurm", "--slurm", "a=1", "b=2", "--epochs", "3"], _CLUSTER_FLAGS)
        ['photos', '--epochs', '3']
    """
    remaining, skipped = [], 0
    for position, argument in enumerate(argv):
        name, equals, _ = argument.partition("=")
        if argument == "--":  # no flags follow
            return [*remaining, *argv[position:]]
        if argument.startswith("-"):
            skipped = 0
            if (name := name.replace("_", "-")) in flags:
                skipped = 0 if equals else sys.maxsize if flags[name] else 1
                continue
        if skipped:
            skipped -= 1
            continue
        remaining.append(argument)
    return remaining


def _end_with_parent() -> None:
    """Let the system kill a child whose parent was killed, so that no process of a lost job continues."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
