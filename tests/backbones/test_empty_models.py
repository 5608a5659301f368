"""Models without values: of the shapes of the real ones, and built without computing initial values."""

import pytest
import timm
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paucal.backbones.empty_models import build_empty, meta_device

FILLS = {"normal_", "uniform_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_"}


class RecordedOperators(TorchDispatchMode):
    """Records the names of the operators that are computed."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_efficientnet", "test_convnext"])
def test_empty_model__has_the_shapes_of_the_real_one_and_fills_nothing(name):
    with RecordedOperators() as recorded:
        empty = build_empty(name, {})
    assert recorded.names  # of creating the tensors
    assert not recorded.names & FILLS
    real = timm.create_model(name).state_dict()
    assert {key: (value.shape, value.dtype) for key, value in empty.state_dict().items()} == {
        key: (value.shape, value.dtype) for key, value in real.items()
    }
    assert all(value.is_meta for value in empty.state_dict().values())


def test_tensors_with_values__are_filled_as_ever():
    values = torch.ones(3)
    with meta_device():
        torch.nn.init.constant_(values, 2.0)
        values.mul_(3)
    assert values.tolist() == [6.0] * 3
