"""Models by name: a run, or a model of timm."""

import pytest

from paucal.models.frozen import open_frozen
from paucal.models.named import open_named
from paucal.runner.starts import choose
from paucal.types import UserError


@pytest.mark.parametrize("use", [open_named, open_frozen, lambda name: choose(name, "cpu", 64)])
def test_a_tag_that_timm_does_not_know_is_refused(use) -> None:
    with pytest.raises(UserError, match=r"timm knows no weights 'a1_in' of resnet18 .did you mean resnet18.a1_in1k"):
        use("resnet18.a1_in")
