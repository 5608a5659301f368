"""The images of `paucal explain`, batch by batch."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from paucal.types import UserError
from paucal.verbs.explain.inputs import ExplainInput
from paucal.verbs.explain.launch import _in_batches


def test_matches__of_a_folder_are_refused_after_three_images():
    def images() -> Iterator[ExplainInput]:
        for number in range(3):
            yield ExplainInput(f"{number}.png", np.zeros((2, 2, 3)), torch.zeros(3, 2, 2))
        raise AssertionError("read all images")

    with pytest.raises(UserError, match=r"takes one image .* or two"):
        next(_in_batches(images(), ["matches"], 16))
