"""Too little memory: what is said, and the largest batch that fits."""

import pytest
import torch

from contracts import toys
from paucal.memory import is_out_of_memory
from paucal.training import Plan, largest_batch
from paucal.training.fit import advise_on_memory_errors
from paucal.types import Batch, UserError


class Hungry(toys.PerBlock):
    """Has memory for so many images, as a GPU would have it."""

    def __init__(self, room, error):
        super().__init__()
        self.room, self.error, self.tried = room, error, []

    def forward(self, batch, progress):
        self.tried.append(len(batch))
        if len(batch) > self.room:
            raise self.error
        return super().forward(batch, progress)


def make_batch(size: int) -> Batch:
    return Batch(torch.arange(size), [torch.randn(size, 3, toys.SIZE, toys.SIZE)], torch.arange(size) % 10)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("MPS backend out of memory (MPS allocated...)")],
)
def test_largest_batch__is_the_first_that_fits_and_leaves_no_trace(error):
    objective = Hungry(9, error)
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    assert largest_batch(objective, make_batch, [32, 16, 8, 4], torch.device("cpu")) == 8
    assert objective.tried == [32, 16, 8]
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())
    assert all(p.grad is None for p in objective.parameters())


def test_largest_batch__says_when_nothing_fits_and_passes_other_errors_on():
    with pytest.raises(UserError, match=r"not even 4 images fit .* lower --img-size"):
        largest_batch(Hungry(1, MemoryError()), make_batch, [8, 4], torch.device("cpu"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        largest_batch(Hungry(1, RuntimeError("shapes do not match")), make_batch, [8], torch.device("cpu"))


def test_advice__names_what_to_lower_and_keeps_the_effective_batch():
    with (
        pytest.raises(UserError, match=r"--accumulate 4 .* --batch-size auto.* --img-size"),
        advise_on_memory_errors(Plan(9, 3, 2)),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    with pytest.raises(RuntimeError, match="something else"), advise_on_memory_errors(Plan(9, 3)):
        raise RuntimeError("something else")
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    assert not is_out_of_memory(ValueError("out of memory"))
