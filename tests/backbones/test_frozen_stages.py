"""A network that goes on from the activations of its frozen stages."""

import pytest
import timm
import torch
from torch import nn

from paucal.backbones.frozen_stages import FrozenStages
from paucal.types import UserError

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 2}
SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 12, "depths": (1, 1, 2), "num_heads": (1, 2, 4)}


@pytest.mark.parametrize(
    ("name", "arguments", "frozen"),
    [
        ("tf_efficientnet_lite0", {}, 4),
        ("resnet10t", {}, 0),
        ("resnet10t", {}, 2),
        ("vit_tiny_patch16_224", SMALL, 2),
        ("swin_tiny_patch4_window7_224", SWIN, 1),
    ],
)
def test_going_on__gives_the_logits_and_gradients_of_the_whole_network(name, arguments, frozen):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3, **arguments).eval()
    images = torch.randn(4, 3, 32, 32)
    stages = FrozenStages(model, frozen)
    kept = stages.activations(images)
    assert len(kept) == 4
    whole = model(images)
    whole.square().sum().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    found = model(stages.resume_from(kept.flip(0)))
    stages.forget_activations()
    torch.testing.assert_close(found, whole.flip(0))
    found.square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert 0 < len(gradients) < len(wanted)  # none reaches the frozen stages
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(model(images), whole)
    stages.close()


def test_activations__of_a_stage_with_more_inputs_are_refused():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.blocks = nn.Conv2d(3, 4, 1), nn.ModuleList([nn.Bilinear(4, 4, 4), nn.Linear(4, 2)])

        def group_matcher(self, coarse):
            return {"stem": "^stem", "blocks": r"^blocks\.(\d+)"}

        def forward(self, images):
            pooled = self.stem(images).mean((2, 3))
            return self.blocks[1](self.blocks[0](pooled, pooled))

    stages = FrozenStages(Two(), 0)
    with pytest.raises(UserError, match="--frozen-views is not supported for"):
        stages.activations(torch.zeros(2, 3, 8, 8))
