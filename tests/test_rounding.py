"""The bound on rounding, by hand."""

import torch
from torch import nn

from rounding import exact_and_bound, require_within


def test_bound__is_the_sum_over_weights_inputs_and_results():
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.0, -2.0]])
    exact, bound = exact_and_bound(layer, torch.tensor([[3.0, 4.0]]), torch.bfloat16)
    assert exact.item() == 3 - 8
    # |1 x 3| + |2 x 4| of the weights, the same of the inputs, and 5 of the result, at most 1/256 of each.
    assert bound.item() == (11 + 11 + 5) / 256


def test_bound__holds_what_a_processor_rounds():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    inputs = torch.randn(4, 64)
    for kind in (torch.bfloat16, torch.float16):
        exact, bound = exact_and_bound(layers, inputs, kind)
        with torch.no_grad(), torch.autocast("cpu", kind):
            found = layers(inputs)
        require_within(found, exact, bound)
        assert not torch.equal(found.double(), exact)
