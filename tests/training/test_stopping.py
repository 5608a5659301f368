"""What ends a run from outside, and how."""

import os
import signal

import pytest
from lightning.pytorch import Callback

from contracts import toys
from paucal.cli import main as program
from paucal.runs import load_checkpoint
from paucal.training.stopping import ending_signals


@pytest.fixture(autouse=True)
def terminal():
    """Let signals have their usual meaning, also where tests run under `nohup` or in a shell's background."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Sends(Callback):
    """Sends this process signals in the middle of a step."""

    def __init__(self, step: int, *numbers: int) -> None:
        self.step, self.numbers = step, numbers

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal__lets_the_step_end_and_saves(number, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
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


def test_hangup__is_left_alone_under_nohup(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ending_signals() == (signal.SIGTERM,)
        monkeypatch.setattr(program, "_dispatch", lambda _: os.kill(os.getpid(), signal.SIGHUP) or 0)
        assert program.main(["train"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ending_signals() == (signal.SIGTERM, signal.SIGHUP)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert ending_signals() == (signal.SIGHUP,)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal__outside_of_training_is_an_interrupt(number, monkeypatch, capsys):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
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
