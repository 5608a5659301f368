"""Calls of paucal in a folder of their own, beside material that none may change."""

import contextlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fuzz.damage import damage
from fuzz.layouts import make_layout
from fuzz.tree import Limits

TESTS = Path(__file__).parents[1]
LIMITS = Limits(busy=30.0, idle=12.0, memory=4 * 2**30, processes=16)
SHOWN = 300  # characters of a word in a command line
SCRIPT = "import sys\nfrom paucal.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@dataclass(frozen=True)
class Step:
    """Something done before a call, in its folder.

    Attributes:
        what: "copy" (of material), "damage", "layout" or "write".
        path: relative to the folder of the call.
        how: name of the material, of the damage or of the layout; the text that is written.
    """

    what: str
    path: str
    how: str

    def do(self, folder: Path) -> None:
        """Do it below the folder of a call."""
        path = folder / self.path
        if self.what == "copy":
            source = folder / "../material" / self.how
            shutil.copytree(source, path, symlinks=True) if source.is_dir() else shutil.copyfile(source, path)
        elif self.what == "write":
            path.write_text(self.how, encoding="utf-8", errors="surrogateescape")
        else:
            {"damage": damage, "layout": make_layout}[self.what](path, self.how)

    def __str__(self) -> str:
        """Return it as a command line."""
        path, how = shlex.quote(self.path), shlex.quote(self.how)
        if self.what == "copy":
            return f"cp -r ../material/{how} {path}"
        return f"printf %s {how} > {path}" if self.what == "write" else f"python -m fuzz.{self.what} {path} {how}"


@dataclass(frozen=True)
class Case:
    """One call and what comes before it.

    Attributes:
        kind: of the trial, for counting.
        argv: of the program, verb first.
        steps: before it.
        mutable: paths that the call may change beside its new ones, relative to its folder.
        instead: Python code that is run in place of paucal, to try the harness itself.
    """

    kind: str
    argv: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    mutable: tuple[str, ...] = ()
    instead: str = ""

    @property
    def verb(self) -> str:
        """The first word."""
        return self.argv[0] if self.argv else ""

    def __str__(self) -> str:
        """Return a command line that can be pasted into a shell in a folder beside the material."""
        return " && ".join([*map(str, self.steps), "paucal " + " ".join(_quote(word) for word in self.argv)])


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        code: exit code, negative for a signal.
        out: standard output.
        err: standard error.
        seconds: it took.
        why: it was stopped from outside, see `Tree`; "" where it ended by itself.
    """

    code: int
    out: str
    err: str
    seconds: float
    why: str


class Caller:
    """Makes calls below a workspace; a context manager.

    Args:
        workspace: folder of the material and of the calls.
        limits: what a call may use.
        few_calls: whether the server starts quickly instead of making each call quick: it imports nothing ahead for
            `eval` and `export`, and leaves figures blank.
    """

    def __init__(self, workspace: Path, limits: Limits = LIMITS, *, few_calls: bool = False) -> None:
        self.limits, self.few_calls = limits, few_calls
        self.workspace = workspace.resolve()
        self.folder, self.material = self.workspace / "call", self.workspace / "material"
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Caller":
        self.workspace.mkdir(parents=True, exist_ok=True)
        (self.workspace / "bin").mkdir(exist_ok=True)
        (self.workspace / "bin" / "paucal").write_text(SCRIPT)
        (self.workspace / "home").mkdir(exist_ok=True)
        self._start()
        first = self.workspace / "first"
        if not first.exists():
            for name in ("material", "home"):
                shutil.copytree(self.workspace / name, first / name, symlinks=True, copy_function=_copy)
        return self

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def prepare(self, case: Case) -> None:
        """Make the folder of a call, as its steps say."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for step in case.steps:
            step.do(self.folder)

    def restore(self) -> None:
        """Make the material, and the home beside it, as they were at first."""
        for name in ("material", "home"):
            shutil.rmtree(self.workspace / name)
            shutil.copytree(self.workspace / "first" / name, self.workspace / name, symlinks=True, copy_function=_copy)

    def call(self, case: Case) -> Outcome:
        """Make a call in the prepared folder."""
        request = {"argv": case.argv, "instead": case.instead, "cwd": str(self.folder), "limits": self.limits}
        for _ in range(2):
            answer = self._ask(request)
            if answer is not None:
                return Outcome(**answer)
            self._start()
        raise RuntimeError(f"the server of calls died twice on: {case}")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        assert self._server is not None
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            line = self._server.stdout.readline()
            return json.loads(line) if line else None
        return None

    def _start(self) -> None:
        self._stop()
        command = [sys.executable, "-m", "fuzz.server", str(self.workspace), *["few"] * self.few_calls]
        pipe = subprocess.PIPE
        log = (self.workspace / "server.log").open("a")
        with log:
            self._server = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=self._environment(), cwd=self.workspace
            )
        assert self._server.stdout is not None
        if not self._server.stdout.readline():
            raise RuntimeError(f"the server of calls did not start: see {self.workspace / 'server.log'}")

    def _stop(self) -> None:
        if self._server is not None:
            with self._server:
                self._server.kill()
            self._server = None

    def _environment(self) -> dict[str, str]:
        home = str(self.workspace / "home")
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", ""), str(TESTS.parent / "src")])
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        # A call sees one home that is watched, and a cache that is its own.
        cache = {"HOME": home, "XDG_CACHE_HOME": str(self.folder / "cache"), "PAUCAL_DATA": str(self.folder / "sets")}
        cluster = {"RAY_ADDRESS": "nowhere"}  # a call with --on ray is refused: starting a cluster takes too long
        return {**os.environ, **one, **cache, **cluster, "PYTHONPATH": path, "MPLBACKEND": "Agg", "COLUMNS": "200"}


def _copy(source: str, target: str) -> None:
    """Copy a file of any kind."""
    mode = os.lstat(source).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        os.mknod(target, mode)
    else:
        shutil.copy2(source, target)


def _quote(word: str) -> str:
    """Quote for a shell, also what cannot be shown, and briefly what is long."""
    for length in range(1, 11):
        unit, times = word[:length], -(-len(word) // length)
        if len(word) > SHOWN and word.isprintable() and word == (unit * times)[: len(word)]:
            program = f"print(({json.dumps(unit, ensure_ascii=False)} * {times})[:{len(word)}], end='')"
            return f'"$(python -c {shlex.quote(program)})"'
    if word.isprintable():
        return shlex.quote(word)
    content = word.encode(errors="surrogateescape")
    return "$'" + "".join(chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in content) + "'"
