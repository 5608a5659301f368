import pytest
import timm
import torch
from torch import nn

import paucal.backbones
from paucal.backbones import BackboneSpec
from paucal.backbones.empty_models import meta_device
from paucal.objectives import DrLoc, Supervised
from paucal.training.module import parameter_groups, undecayed_parameters

assert paucal.backbones


class Odd(nn.Module):
    """Parameters that simple rules get wrong."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 4))
        self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
        self.bias2d = nn.Conv2d(3, 4, 1)
        self.listed = nn.Parameter(torch.zeros(3, 3))
        self.weight = nn.Parameter(torch.zeros(3, 3))
        self.bias = nn.Parameter(torch.zeros(3, 3))

        class ChannelNorm(nn.Module):
            def __init__(self):
                super().__init__()
                self.g = nn.Parameter(torch.ones(1, 4, 1, 1))

        self.inner = ChannelNorm()

    def no_weight_decay(self):
        return {"listed"}


def test_undecayed__by_shape_kind_name_and_listing():
    undecayed = set(undecayed_parameters(Odd()))
    assert undecayed == {
        *(
            "cls_token",
            "pos_embed",
            "relative_position_bias_table",
            "bias2d.bias",
            "listed",
            "bias",
            "inner.g",
        ),
    }


def test_undecayed__listings_of_submodules_get_full_names():
    assert "a.listed" in set(undecayed_parameters(nn.ModuleDict({"a": Odd()})))


def test_swin__has_the_published_split_of_tensors():
    # The fact sheet counts 56 decayed and 123 other tensors for Swin-T with the localization head.
    with meta_device():
        model = timm.create_model("swin_tiny_patch4_window7_224")
    head = nn.Sequential(nn.Linear(1536, 512), nn.Linear(512, 512), nn.Linear(512, 2))
    groups = {g["decayed"]: len(g["params"]) for g in parameter_groups(nn.ModuleList([model, head]))}
    assert groups == {True: 56, False: 123}


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "convnext_atto", "resnet18"]
)
def test_groups__hold_every_trainable_parameter_once(name):
    with meta_device():
        model = timm.create_model(name)
    next(iter(model.parameters())).requires_grad_(False)
    groups = parameter_groups(model, lambda n: "head" if n.startswith(("head", "fc")) else "body")
    names = [n for group in groups for n in group["names"]]
    assert sorted(names) == sorted(n for n, p in model.named_parameters() if p.requires_grad)
    for group in groups:
        for n, p in zip(group["names"], group["params"], strict=True):
            assert model.get_parameter(n) is p
            assert (group["label"] == "head") == n.startswith(("head", "fc"))
            if group["decayed"]:
                assert p.ndim >= 2
                assert "token" not in n
                assert "pos_embed" not in n


def test_groups__with_tables_spare_biases_and_one_dimension_only():
    """EsViT's sheet, 1.7: "Not decayed: 1-D parameters and biases. Everything of 2 dimensions or more is decayed"."""
    model = nn.ModuleDict({"a": Odd(), "b": timm.create_model("test_vit", num_classes=3)})
    decayed = next(group["names"] for group in parameter_groups(model, decays_tables=True) if group["decayed"])
    by_hand = [name for name, p in model.named_parameters() if p.ndim > 1 and not name.endswith(".bias")]
    assert decayed == by_hand
    assert {"b.cls_token", "b.pos_embed"} <= set(decayed)
    assert not {"b.cls_token", "b.pos_embed"} & {
        name for group in parameter_groups(model) if group["decayed"] for name in group["names"]
    }


def test_groups__weights_of_the_localization_head_are_decayed():
    backbone = BackboneSpec("vit_mini", 3, image_size=(16, 16)).build()
    objective = Supervised(backbone, {"drloc": DrLoc([backbone.dim], [backbone.grid])})
    decayed = next(g["names"] for g in parameter_groups(objective) if g["decayed"])
    assert [n for n in decayed if n.startswith("terms.")] == [
        "terms.0.heads.0.first.weight",
        "terms.0.heads.0.second.weight",
        "terms.0.heads.0.last.weight",
    ]
