"""Models by name: a run, or a model of timm."""

import pytest
import torch

from paucal.backbones import BackboneSpec
from paucal.backbones.families.common.positions import resample_positions
from paucal.models.card import ModelCard
from paucal.models.named import open_frozen, open_named
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import save_trained
from paucal.runner.initial_weights import choose_weights
from paucal.runs import RunFolder
from paucal.types import UserError


@pytest.mark.parametrize("use", [open_named, open_frozen, lambda name: choose_weights(name, "cpu", 64)])
def test_a_tag_that_timm_does_not_know_is_refused(use) -> None:
    with pytest.raises(UserError, match=r"timm has no weights 'a1_in' of resnet18 .did you mean resnet18.a1_in1k"):
        use("resnet18.a1_in")


def test_a_run_of_images_that_are_not_square_keeps_its_positions_at_another_size(tmp_path) -> None:
    size = (32, 48)
    spec = BackboneSpec("vit_mini", 2, image_size=size, arguments={"depth": 1})
    network = spec.build().model
    card = ModelCard(spec, ("a", "b"), Preprocessing(size, 1.0, "bicubic", (0.5,) * 3, (0.5,) * 3))
    save_trained(RunFolder(tmp_path), network, card)
    opened = open_named(str(tmp_path), image_size=(64, 96)).module
    expected = resample_positions(network.pos_embed.detach(), (8, 12), (16, 24), prefix=0, antialias=True)  # type: ignore[arg-type]
    torch.testing.assert_close(opened.pos_embed.detach(), expected)  # type: ignore[union-attr]
