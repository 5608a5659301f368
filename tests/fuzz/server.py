"""A process that has paucal loaded and forks for each call, so that a call costs no start: `python -m fuzz.server`.

Reads one request a line on its standard input, answers one line on its standard output, all JSON.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import io
import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from blank_figures import leave_blank
from fuzz.tree import Tree
from paucal.cli.main import main

GIB = 2**30
ADDRESS_SPACE = 6 * GIB  # beyond what a fresh process has
FILE_BYTES = GIB
PAUSE = 0.004  # seconds between two looks at a child
SERVES = "press Ctrl-C to stop"  # what `serve` says once it answers; it has no end of its own
TEXT_BYTES = 200_000  # of output that is kept
_CONNECT = socket.socket.connect


def serve(workspace: Path, few_calls: bool) -> None:
    """Make what calls need, then answer requests until the input ends."""
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    log = os.open(workspace / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    if few_calls:
        leave_blank(_replace)
    _warm_up(workspace, few_calls)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), workspace)), file=answers, flush=True)


def _replace(name: str, value: object) -> None:
    """Set an attribute of a module by its dotted name."""
    module, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(module), attribute, value)


def _warm_up(workspace: Path, few_calls: bool) -> None:
    from fuzz.material import make_material

    if not (workspace / "made").exists():
        shutil.rmtree(workspace / "material", ignore_errors=True)
        make_material(workspace / "material")
        (workspace / "made").touch()
    here = os.getcwd()
    (workspace / "warm").mkdir()
    os.chdir(workspace / "warm")  # what a first call imports, later ones need not
    for name, verb in (("photos", "train"), ("photos", "pretrain")):
        main([verb, f"../material/{name}", "--model", "vit_mini", "--print-config"])
    if not few_calls:
        protocols = ["--protocol", "knn", "linear", "logistic", "--probe-epochs", "1"]
        main(["eval", "../material/run", *protocols, "--output", "x"])
        main(["export", "../material/run", "--images", "4", "--output", "y"])
    os.chdir(here)
    shutil.rmtree(workspace / "warm")


def _answer(request: dict[str, Any], workspace: Path) -> dict[str, Any]:
    paths = [workspace / "stdout", workspace / "stderr"]
    for path in paths:
        path.unlink(missing_ok=True)
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_called(request, workspace, paths)
    tree = Tree(child, request["limits"])
    while (status := tree.look()) is None:
        time.sleep(PAUSE)
        if request["argv"][:1] == ["serve"] and SERVES in _text(paths[0]):
            tree.interrupt()
    out, err = (_text(path) for path in paths)
    seconds = time.monotonic() - begin
    return {"code": os.waitstatus_to_exitcode(status), "out": out, "err": err, "seconds": seconds, "why": tree.why}


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return file.read(TEXT_BYTES).decode(errors="replace")


def _be_called(request: dict[str, Any], workspace: Path, paths: list[Path]) -> NoReturn:
    """Become the program `paucal`."""
    code = 1
    try:
        _set_up(request, workspace, paths)
        code = _run(request["argv"], request["instead"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # what would reach the interpreter, and the screen
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _run(argv: list[str], instead: str) -> int:
    if not instead:
        return main(argv)
    exec(instead, {"sys": sys, "os": os, "time": time})
    return 0


def _set_up(request: dict[str, Any], workspace: Path, paths: list[Path]) -> None:
    os.setsid()
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    for number, path in enumerate(paths, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8") for number in (1, 2)
    )
    faulthandler.register(signal.SIGUSR1, file=sys.stderr.fileno())
    faulthandler.enable(sys.stderr.fileno())
    os.chdir(request["cwd"])
    # Lightning starts its other processes by the name of the program.
    sys.argv = [str(workspace / "bin" / "paucal"), *request["argv"]]
    sys.modules["__main__"].__spec__ = None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    socket.socket.connect = _connect_here  # type: ignore[method-assign]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _connect_here(self: socket.socket, address: Any) -> None:
    """Reach the processes of a call, and no network."""
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(101, "Network is unreachable")
    _CONNECT(self, address)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), few_calls=sys.argv[2:] == ["few"])
