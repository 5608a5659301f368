"""Which signals end a program, and what loader processes do about them."""

import os
import signal
import subprocess
import sys
import time

import pytest

from cli.calls import make_photos
from paucal.runs.weights import load_checkpoint
from paucal.signals import stop_signals

WORKER = """
import os, signal, sys, time
sys.argv[0] = "paucal"  # as in the command, so that importing paucal does not load timm
from paucal.signals import ignore_stop_signals
child = os.fork()
if not child:
    ignore_stop_signals()
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(1)
sys.stdin.readline()
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# Interrupts the process when it begins to import a module; "end" is printed where the process ends in the usual way.
SITE = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            atexit.register(print, "end")
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""


@pytest.fixture
def usual(monkeypatch):
    """Give all signals their usual meaning, outside of SLURM."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_ARRAY_JOB_ID"])
def test_stop_signals__are_more_in_slurm(variable, monkeypatch):
    assert stop_signals() == (signal.SIGTERM, signal.SIGHUP)
    monkeypatch.setenv(variable, "7")
    assert stop_signals() == (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)  # somebody's own
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # which would lose the state
    assert stop_signals() == (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell who has sent a signal")
def test_loader_process__ends_at_the_signal_of_its_parent_alone():
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=-1, stdout=-1, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(child, number)
        time.sleep(0.2)
        os.kill(child, 0)  # raises where it is gone
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "0\n"


@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize(
    ("module", "output"), [("paucal.cores", ""), ("rich.markup", ""), ("paucal.cli.recipes", "end\n")]
)
def test_interrupt__during_imports_ends_the_command_without_a_traceback(script, module, output, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "paucal").write_text("import sys; from paucal.cli.main import main; sys.exit(main())")
    program = [str(tmp_path / "paucal")] if script else ["-m", "paucal"]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "INTERRUPTED_IMPORT": module}
    command = [sys.executable, *program, "recipes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, output, "interrupted.\n")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "pretrain"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_slurm__stops_a_run_with_its_loader_processes(verb, name, tmp_path):
    flags = [*("--model", "vit_mini", "--img-size", "16", "--model-args", "depth=1"), *("-j", "2", "--epochs", "2000")]
    command = [sys.executable, "-m", "paucal.cli.main", verb, str(make_photos(tmp_path / "photos")), *flags]
    environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "train"}
    options = {"cwd": tmp_path, "env": environment, "start_new_session": True, "text": True}
    with subprocess.Popen([*command, "--output", "run"], stdout=-1, stderr=-1, **options) as process:
        end = time.monotonic() + 120
        while not (tmp_path / "run" / "metrics.csv").exists() and time.monotonic() < end:
            time.sleep(0.2)
        os.killpg(process.pid, getattr(signal, name))
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    step = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"]
    last = output.splitlines()[-1]
    assert last.startswith(f"stopped after step {step} of ")
    assert last.endswith(f"; resume with: paucal {verb} --resume run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "run"]
