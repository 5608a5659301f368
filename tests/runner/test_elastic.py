"""Runs that go on with another number of processes: every step keeps its images."""

import multiprocessing
import os
import socket
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch.distributed import distributed_c10d

from contracts import toys
from paucal.data.sampler import StepSampler
from paucal.data.shards.stream import Stream
from paucal.methods.training_settings import TrainSettings
from paucal.runner.processes import explain_lost_processes
from paucal.runner.resuming import resumed_process_counts, with_processes
from paucal.training import Hardware
from paucal.training.stopping import ProcessGroupTimeout
from paucal.types import UserError

IMAGES, STEPS = 100, 9
STREAM = Stream.from_blocks(
    np.repeat([0, 1, 2, 3], 25).astype(np.int32), np.repeat(range(10), 10).astype(np.int32), window=16
)
WIDTH = TrainSettings(batch_size=8, accumulate=1, devices=2, nodes=1, strategy="ddp")


class Stop(Callback):
    """Ends a run like a kill after a number of steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.step:
            raise InterruptedError


@pytest.mark.parametrize(
    ("devices", "nodes", "batch", "accumulate", "strategy"),
    [(1, 1, 8, 2, "auto"), (4, 1, 4, 1, "ddp"), (2, 4, 2, 1, "ddp"), (2, 1, 8, 1, "ddp")],
)
def test_with_processes__keeps_the_images_of_a_step_and_the_memory(devices, nodes, batch, accumulate, strategy):
    settings, reasons = with_processes(WIDTH, devices, nodes)
    assert (settings.batch_size, settings.accumulate, settings.strategy) == (batch, accumulate, strategy)
    assert (settings.devices, settings.nodes, settings.effective_batch) == (devices, nodes, 16)
    assert "16 images of a step" in reasons["batch_size"]


def test_with_processes__refuses_unequal_shares():
    with pytest.raises(UserError, match=r"3 processes cannot share the 16 images .* processes must be 2 or 4"):
        with_processes(WIDTH, 3, 1)
    with pytest.raises(UserError, match="the number of processes must be 8 or 16"):
        with_processes(WIDTH, 32, 1)
    with pytest.raises(UserError, match=r"2 processes cannot share the 1 image .* the number of processes must be 1\."):
        with_processes(replace(WIDTH, batch_size=1, accumulate=1, devices=1, nodes=1), 2, 1)


def test_shape__is_given_or_launched_or_stored(monkeypatch):
    assert resumed_process_counts({}, WIDTH) == (2, 1)
    assert resumed_process_counts({"devices": 4}, WIDTH) == (4, 1)
    for name, value in {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "LOCAL_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert resumed_process_counts({}, WIDTH) == (1, 1)  # torchrun with one process


def images_of_steps(settings: TrainSettings, first: int, last: int, stream: Stream | None) -> list[Counter]:
    """Return the images that all processes use in each of some steps, with their draws."""
    steps = [Counter() for _ in range(first, last)]
    for rank in range(settings.processes):
        sampler = StepSampler(
            *(np.arange(IMAGES), settings.batch_size_or_1, last * settings.accumulate, 3, first * settings.accumulate),
            *(rank, settings.processes),
            accumulate=settings.accumulate,
            stream=stream,
        )
        for number, batch in enumerate(sampler):
            steps[number // settings.accumulate].update(batch)
    return steps


@pytest.mark.parametrize("stream", [None, STREAM])
def test_steps__have_the_same_images_when_processes_change_within_a_pass(stream):
    whole = images_of_steps(WIDTH, 0, STEPS, stream)
    pieces, settings, step = [], WIDTH, 0
    for devices, end in ((2, 2), (1, 4), (8, 5), (4, STEPS)):
        settings, _ = with_processes(settings, devices, 1)
        pieces += images_of_steps(settings, step, end, stream)
        step = end
    assert pieces == whole
    assert max(sum(whole[:6], Counter()).values()) == 1  # six steps of 16 are a pass over 100 images


@pytest.mark.parametrize(("before", "after"), [((16, 1), (8, 2)), ((4, 4), (16, 1))])
def test_resume__with_other_forward_passes_per_step_gives_the_same_weights(before, after, tmp_path):
    def train(folder, shape, **more):
        batch, accumulate = shape
        objective = toys.make("per_block")
        toys.train(objective, tmp_path / folder, epochs=2, batch=batch, accumulate=accumulate, save_every=3, **more)
        return torch.cat([p.detach().flatten() for p in objective.parameters()])

    whole = train("whole", before)
    with pytest.raises(InterruptedError):
        train("resumed", before, callbacks=[Stop(4)])  # one step after the state was saved
    resumed = train("resumed", after)
    assert (resumed - whole).norm() < 1e-4 * whole.norm()


def exchange(rank: int, port: int, limit: float, told) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    ProcessGroupTimeout(limit).on_train_start(None, None)  # type: ignore[arg-type]
    if rank == 1:
        time.sleep(60)  # it hangs
    try:
        with explain_lost_processes("paucal train --resume r"):
            torch.distributed.all_reduce(torch.zeros(1))
    except UserError as problem:
        told.put(str(problem))


@pytest.fixture
def alone(tmp_path):
    """A group of one process."""
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def limit() -> float:
    """Return the seconds that this process waits for others."""
    group = torch.distributed.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


class Limits(Callback):
    """Notes the limit at each step."""

    def __init__(self) -> None:
        self.seen: set[float] = set()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.add(limit())


def test_fit__limits_the_wait_while_it_trains(alone, tmp_path):
    limits = Limits()
    toys.train(
        toys.make("per_block"), tmp_path, epochs=1, images=16, callbacks=[limits], hardware=Hardware(hang_seconds=7)
    )
    assert limits.seen == {7}
    assert limit() == 1800


@pytest.mark.parametrize(("backend", "seconds"), [("gloo", 1800), ("nccl", 600), ("cpu:gloo,cuda:nccl", 1800)])
def test_hang_limit__afterwards_is_what_torch_begins_with(alone, monkeypatch, backend, seconds):
    ProcessGroupTimeout(7).on_train_start(None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    monkeypatch.setattr(distributed_c10d, "default_pg_nccl_timeout", timedelta(minutes=10))  # None without NCCL
    ProcessGroupTimeout(7).on_train_end(None, None)  # type: ignore[arg-type]
    assert limit() == seconds


def test_a_process_that_hangs__is_noticed_after_the_limit():
    context = multiprocessing.get_context("fork")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    told = context.Queue()
    processes = [context.Process(target=exchange, args=(rank, port, 1.0, told)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        assert "another process of this run ended or did not answer" in told.get(timeout=50)
    finally:
        for process in processes:
            process.kill()


def test_a_lost_process__ends_the_others_with_how_to_go_on():
    closed = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3333"
    for problem in (RuntimeError(closed), torch.distributed.DistBackendError("NCCL watchdog timed out")):
        with (
            pytest.raises(UserError, match=r"another process .* continue with 'paucal train --resume r'"),
            explain_lost_processes("paucal train --resume r"),
        ):
            raise problem
    with pytest.raises(RuntimeError, match="shapes"), explain_lost_processes("paucal train --resume r"):
        raise RuntimeError("shapes do not fit")
