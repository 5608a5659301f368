"""A compiler that fails, and one that takes long."""

import os
import signal
import time

import pytest
import torch
from torch._dynamo import register_backend
from torch._dynamo.exc import InternalTorchDynamoError

from contracts import toys
from paucal.training import Hardware
from paucal.training.fit import is_compiler_error
from paucal.types import UserError


@register_backend
def broken(graph, inputs):
    raise AttributeError("no such thing\nand much advice")


@register_backend
def interrupted(graph, inputs):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)  # a signal is dealt with between two lines
    raise AssertionError("the compiler went on")


@register_backend
def exhausted(graph, inputs):
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def train(folder, backend):
    return toys.train(toys.make("geometry"), folder, epochs=1, hardware=Hardware(compile_backend=backend))


def test_compiler__that_fails_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"--compile failed with AttributeError \(no such thing\): .*remove --compile"):
        train(tmp_path, "broken")


def test_compiler__without_memory_gives_the_advice_on_memory(tmp_path):
    with pytest.raises(UserError, match=r"the memory of the device .* is too small"):
        train(tmp_path, "exhausted")


def test_interrupt__while_compiling_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, "interrupted")
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()


def test_failure__of_others_is_none_of_the_compiler(tmp_path):
    assert not is_compiler_error(ValueError("x"))
    problem = RuntimeError("rethrown")
    problem.__cause__ = InternalTorchDynamoError()
    assert is_compiler_error(problem)
