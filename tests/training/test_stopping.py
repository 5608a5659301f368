"""What ends a run from outside, and how."""

import os
import signal

import pytest
from lightning.pytorch import Callback

from contracts import toys
from paucal.cli import main as program
from paucal.runs.weights import load_checkpoint
from paucal.signals import stop_signals

STOP = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """Let signals have their usual meaning, also where tests run under `nohup`, in SLURM or in a shell's background."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    usual = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(STOP, signal.SIG_DFL)}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def slurm(monkeypatch):
    """Look like the only task of a job of SLURM."""
    values = {"JOB_ID": "7", "NTASKS": "1", "JOB_NAME": "train", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    for name, value in values.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


class Sends(Callback):
    """Sends this process signals in the middle of a step."""

    def __init__(self, step: int, *numbers: int) -> None:
        self.step, self.numbers = step, numbers

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal__lets_the_step_end_and_saves(number, tmp_path):
    before = signal.getsignal(number)
    outcome = toys.train(toys.make("geometry"), tmp_path, callbacks=[Sends(2, number)])
    assert (outcome.finished, outcome.step) == (False, 3)
    assert load_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 3
    assert signal.getsignal(number) is before
    assert not [file for file in tmp_path.rglob("*") if file.name.endswith(".tmp")]


def test_interrupt__twice_ends_at_once_as_an_interrupt(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        toys.train(toys.make("geometry"), tmp_path, callbacks=[Sends(2, signal.SIGINT, signal.SIGINT)])
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("number", STOP)
def test_signal__of_slurm_saves_in_the_run_folder(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpc_ckpt_1.ckpt").write_text("of another run")
    outcome = toys.train(toys.make("geometry"), tmp_path / "run", callbacks=[Sends(2, number)])
    assert (outcome.finished, outcome.step) == (False, 3)
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] == 3
    assert signal.getsignal(number) == signal.SIG_DFL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hpc_ckpt_1.ckpt", "run"]


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("handler", ["submitit", "ignored"])
def test_signal__that_another_program_handles_stays_with_it(handler, tmp_path):
    heard = []

    def bypass(number, frame):
        heard.append(number)

    bypass.__module__ = "submitit.core.job_environment"
    kept = bypass if handler == "submitit" else signal.SIG_IGN
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, kept)
    outcome = toys.train(toys.make("geometry"), tmp_path, callbacks=[Sends(2, signal.SIGTERM, signal.SIGUSR2)])
    assert (outcome.finished, outcome.step) == (True, 12)
    assert heard == ([signal.SIGTERM, signal.SIGUSR2] if handler == "submitit" else [])
    assert signal.getsignal(signal.SIGTERM) == kept


def test_signal__before_the_first_step_is_an_interrupt(tmp_path):
    class SendsEarly(Callback):
        def on_train_start(self, trainer, pl_module):
            raise AssertionError("it trains")

        def on_fit_start(self, trainer, pl_module):
            trainer.fit_loop.setup_data = lambda: os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        toys.train(toys.make("geometry"), tmp_path, callbacks=[SendsEarly()])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_hangup__is_left_alone_under_nohup(monkeypatch):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert stop_signals() == (signal.SIGTERM,)
    monkeypatch.setattr(program, "_dispatch", lambda _: os.kill(os.getpid(), signal.SIGHUP) or 0)
    assert program.main(["train"]) == 0


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("number", [signal.SIGINT, *STOP])
def test_signal__outside_of_training_is_an_interrupt(number, monkeypatch, capsys):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    before, ended = signal.getsignal(number), []

    def work(_):
        try:
            os.kill(os.getpid(), number)
            return 0
        finally:
            ended.append("cleared up")

    monkeypatch.setattr(program, "_dispatch", work)
    assert program.main(["eval"]) == 130
    assert capsys.readouterr().err == "interrupted.\n"
    assert ended == ["cleared up"]
    assert signal.getsignal(number) is before
