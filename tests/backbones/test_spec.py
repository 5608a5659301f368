"""BackboneSpec: built alike every time, stored as JSON, mistakes told in one sentence."""

import json

import pytest
import torch

from paucal.backbones.spec import BackboneSpec
from paucal.types import FeatureRequest, UserError

VIT = BackboneSpec(
    "vit_tiny_patch16_224", 4, image_size=(32, 48), arguments={"depth": 1, "embed_dim": 48, "num_heads": 3}
)


def test_build__fits_the_model_to_the_images_and_classes() -> None:
    backbone = VIT.build()
    features = backbone(torch.zeros(2, 3, 32, 48))
    assert backbone.grid == (8, 12)
    assert features.logits.shape == (2, 4)


def test_build__takes_its_weights_from_the_global_generator() -> None:
    states = []
    with torch.random.fork_rng():
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            states.append(VIT.build().model.blocks[0].mlp.fc1.weight)
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_build__takes_other_channels() -> None:
    backbone = BackboneSpec("resnet18", 0, in_chans=1, image_size=(32, 32)).build()
    assert backbone.shapes() == [(512, 4, 4)]
    assert backbone(torch.zeros(1, 1, 32, 32)).logits is None


def test_build__takes_several_image_sizes() -> None:
    spec = BackboneSpec("swin_tiny_patch4_window7_224", 0, image_size=(64, 64), arguments={"depths": [1, 1, 1, 1]})
    backbone = spec.build(image_sizes=[(64, 64), (32, 32)])
    assert backbone.shapes(FeatureRequest(), (64, 64)) == [(768, 4, 4)]
    assert backbone.shapes(FeatureRequest(), (32, 32)) == [(768, 2, 2)]


def test_build__sets_the_drop_path_rate_where_there_is_one() -> None:
    spec = BackboneSpec("vit_mini", 2, image_size=(16, 16))
    assert spec.build(drop_path_rate=0.3).model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.3)
    assert BackboneSpec("densenet121", 2, image_size=(64, 64)).build(drop_path_rate=0).num_classes == 2
    with pytest.raises(UserError, match=r"densenet121 has no stochastic depth: a drop-path rate of 0\.1 cannot be set"):
        BackboneSpec("densenet121", 2, image_size=(64, 64)).build(drop_path_rate=0.1)
    with pytest.raises(UserError, match=r"rate is 1\.5; it must be"):
        spec.build(drop_path_rate=1.5)


def test_to_dict__survives_json() -> None:
    stored = json.loads(json.dumps(VIT.to_dict()))
    assert stored["image_size"] == [32, 48]
    assert BackboneSpec.from_dict(stored) == VIT
    tuples = BackboneSpec("swin_tiny_patch4_window7_224", 1, arguments={"depths": (1, 1, 1, 1)})
    assert BackboneSpec.from_dict(tuples.to_dict()) == tuples


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"name": "vit_tiny_patch16"}, "did you mean vit_tiny_patch16_224"),
        ({"name": "zzz"}, "There is no model 'zzz'"),
        ({"name": "resnet18.mine"}, "timm has no weights 'mine' of resnet18"),
        ({"image_size": [32]}, "image size of resnet18 is [32]"),
        ({"image_size": [32.5, 32]}, "whole pixels"),
        ({"num_classes": -1}, "number of classes is -1"),
        ({"in_chans": 0}, "channels is 0"),
        ({"arguments": {"checkpoint_path": "a.pth"}}, "'checkpoint_path' of resnet18 does not describe"),
        ({"arguments": {"pretrained_cfg_overlay": {"file": "a"}}}, "does not describe an architecture"),
        ({"arguments": {"num_classes": 3}}, "is set by another option"),
        ({"arguments": {"act_layer": torch.nn.ReLU}}, "must be of JSON types"),
        ({"colour": 1}, "unknown fields ['colour']"),
    ],
)
def test_from_dict__refuses_what_is_wrong(entries: dict, says: str) -> None:
    with pytest.raises(UserError) as caught:
        BackboneSpec.from_dict({"name": "resnet18", "num_classes": 2, **entries})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("resnet18", {"dept": 3}, "resnet18 has no argument 'dept'; remove it."),
        ("mixer_s32_224", {"num_blocks": 2}, "the argument 'num_blocks' of mixer_s32_224 cannot be changed"),
        (
            "vit_tiny_patch16_224",
            {"embed_dim": 50},
            "vit_tiny_patch16_224 cannot be built with {'embed_dim': 50}",
        ),
    ],
)
def test_build__names_a_wrong_argument(name: str, arguments: dict, says: str) -> None:
    with pytest.raises(UserError) as caught:
        BackboneSpec(name, 2, arguments=arguments).build()
    assert says in str(caught.value)


def test_build__says_where_no_weights_are_published() -> None:
    with pytest.raises(UserError, match="No pretrained weights exist for vit_mini"):
        BackboneSpec("vit_mini", 2, image_size=(32, 32), pretrained=True).build()
