"""Cut tensors, on a mesh of one process or of two of which only the first one is there."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from paucal.training.sharding import (
    UnshardedCopy,
    gather_state,
    load_unsharded,
    local_shard,
    shard,
    shard_like,
    total_norm,
    unshard,
)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def first_of_two():
    """A mesh whose second process is only pretended: nothing may be sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


class View(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).view(-1, 2, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = View()
        self.register_buffer("count", torch.tensor([3.0]))

    def forward(self, x):
        y = self.part(x)
        y += 1
        return y.square().sum()


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_shard__gives_the_gradients_of_the_uncut_module_where_an_output_is_changed_in_place(mesh):
    x, plain, cut = torch.rand(3, 4), net(), net()
    shard(cut, [cut.part], mesh)
    for module in (plain, cut):
        module(x).backward()
    for (name, p), q in zip(plain.named_parameters(), cut.parameters(), strict=True):
        assert isinstance(q, DTensor)
        torch.testing.assert_close(q.grad.full_tensor(), p.grad, msg=name)


def test_states__are_in_one_piece_outside(mesh):
    plain, cut = net(), net()
    copy = UnshardedCopy(lambda: cut)
    shard(cut, [cut.part], mesh)
    expected = {name: value + 1 for name, value in plain.state_dict().items()}
    load_unsharded(cut, expected)
    with copy.updated() as filled:
        for state in (gather_state(cut.state_dict()), filled.state_dict()):
            assert state.keys() == expected.keys()
            for name, value in expected.items():
                assert type(state[name]) is torch.Tensor
                assert torch.equal(state[name], value)


def test_load_whole__refuses_the_state_of_another_module(mesh):
    cut = net()
    shard(cut, [], mesh)
    with pytest.raises(RuntimeError, match="loading state_dict"):
        load_unsharded(cut, {**net().state_dict(), "part.linear.weight": torch.zeros(5, 4)})
    with pytest.raises(RuntimeError, match="loading state_dict"):
        load_unsharded(cut, {"count": torch.zeros(1)})


@pytest.mark.parametrize("rows", [4, 5, 1])
def test_cut_like__keeps_the_first_rows_in_memory_of_their_own(first_of_two, rows):
    full = torch.arange(rows * 3.0).reshape(rows, 3)
    pattern = distribute_tensor(torch.zeros(rows, 3), first_of_two, [Shard(0)], src_data_rank=None)
    cut = shard_like(full, pattern)
    assert cut.shape == full.shape
    assert torch.equal(local_shard(cut), full[: (rows + 1) // 2])
    assert local_shard(cut).untyped_storage().nbytes() == local_shard(cut).numel() * 4
    assert shard_like(full, torch.zeros(rows, 3)) is full


def test_uncut_tensors__pass_through():
    tensors = [torch.tensor([3.0]), torch.tensor([[4.0]])]
    assert total_norm(tensors) == 5
    assert local_shard(tensors[0]) is unshard(tensors[0]) is gather_state({"a": tensors[0]})["a"] is tensors[0]
