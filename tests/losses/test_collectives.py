"""Collective calls: no-ops on one process, the mean over several."""

import subprocess
import sys

import pytest
import torch

from paucal.losses import all_reduce_mean, rank, world_size

PROCESS = """
import sys
import torch
import torch.distributed as dist
from paucal.distributed import broadcast_tensors
from paucal.losses import all_reduce_mean, rank, world_size

number, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
local = torch.tensor([1.0, 10.0]) * (number + 1)
mean = all_reduce_mean(local)
print(rank(), world_size(), mean.tolist(), local.tolist())
broadcast_tensors([local])
print(local.tolist())
dist.destroy_process_group()
"""


def test_collectives__are_no_ops_on_one_process():
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    reduced = all_reduce_mean(value)
    assert (rank(), world_size()) == (0, 1)
    assert reduced.tolist() == [1.0, 2.0]
    assert not reduced.requires_grad
    reduced += 1
    assert value.tolist() == [1.0, 2.0]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.slow
def test_collectives__average_over_two_processes(tmp_path):
    store = str(tmp_path / "store")
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(i), store], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    outputs = [process.communicate(timeout=100)[0].strip() for process in processes]
    first, second = (text.splitlines() for text in outputs)
    assert first == ["0 2 [1.5, 15.0] [1.0, 10.0]", "[1.0, 10.0]"]
    assert second == ["1 2 [1.5, 15.0] [2.0, 20.0]", "[1.0, 10.0]"]
