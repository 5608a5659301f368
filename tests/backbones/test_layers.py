import pytest
import timm
from timm.optim import param_groups_layer_decay

import paucal.backbones
from paucal.backbones.empty_models import meta_device
from paucal.backbones.layers import (
    classifier_parameters,
    count_stages,
    first_stage_parameters,
    layer_ids,
    layer_lr_scales,
)
from paucal.types import UserError

assert paucal.backbones


def naive_layer(name: str, parameter: str) -> int:
    """Layers counted by hand from the models' structure: stem, blocks in order, classifier."""
    parts = parameter.split(".")
    if name.startswith("vit"):
        last = 13
        return int(parts[1]) + 1 if parts[0] == "blocks" else {"norm": 12, "head": last}.get(parts[0], 0)
    if name.startswith("swin"):
        before = [0, 2, 4, 10]  # blocks of the earlier stages
        if parts[0] == "layers" and parts[2] == "blocks":
            return 1 + before[int(parts[1])] + int(parts[3])
        if parts[0] == "layers":  # merging patches belongs to the block that follows
            return 1 + before[int(parts[1])]
        return {"patch_embed": 0, "norm": 12, "head": 13}[parts[0]]
    if parts[0].startswith("layer"):
        return 1 + 2 * (int(parts[0][-1]) - 1) + int(parts[1])
    return 9 if parts[0] == "fc" else 0


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"])
def test_layer_scales__equal_a_count_by_hand_and_timm(name):
    with meta_device():
        model = timm.create_model(name, num_classes=7)
    layers = {parameter: naive_layer(name, parameter) for parameter, _ in model.named_parameters()}
    last = max(layers.values())
    scales = layer_lr_scales(model, 0.75)
    assert scales.keys() == layers.keys()
    for parameter, layer in layers.items():
        expected = 1.0
        for _ in range(last - layer):
            expected *= 0.75
        assert scales[parameter] == pytest.approx(expected), parameter
    by_identity = {id(p): parameter for parameter, p in model.named_parameters()}
    for group in param_groups_layer_decay(model, layer_decay=0.75):
        for p in group["params"]:
            assert scales[by_identity[id(p)]] == group["lr_scale"]


def test_layer_ids__count_tensors_where_timm_has_no_matcher():
    model = timm.create_model("pit_ti_224", num_classes=3)
    ids = layer_ids(model)
    names = [name for name, _ in model.named_parameters()]
    trunk = [name for name in names if not name.startswith("head")]
    assert [ids[name] for name in trunk[:13]] == [0] * 12 + [1]
    assert ids["head.weight"] == max(ids.values()) == -(-len(trunk) // 12)
    with pytest.raises(UserError, match=r"does not define the stages.*--freeze backbone"):
        first_stage_parameters(model, 1)


@pytest.mark.parametrize(
    ("name", "stages", "inside", "outside"),
    [
        ("vit_tiny_patch16_224", 12, {"cls_token", "pos_embed", "blocks.1.norm1.weight"}, {"blocks.2.norm1.weight"}),
        (
            "swin_tiny_patch4_window7_224",
            4,
            {"patch_embed.proj.weight", "layers.1.downsample.norm.weight"},
            {"layers.2"},
        ),
        ("resnet18", 4, {"conv1.weight", "bn1.weight", "layer2.1.bn2.bias"}, {"layer3.0.conv1.weight", "fc.weight"}),
    ],
)
def test_first_stages__are_the_stem_and_so_many(name, stages, inside, outside):
    with meta_device():
        model = timm.create_model(name)
    assert count_stages(model) == stages
    two = first_stage_parameters(model, 2)
    assert inside <= two
    assert not [n for n in two if any(n.startswith(start) for start in outside)]
    assert first_stage_parameters(model, 0) < first_stage_parameters(model, 1) < two
    below = {n for n, _ in model.named_parameters()} - classifier_parameters(model)
    assert first_stage_parameters(model, stages) | {n for n in below if n.startswith("norm.")} == below
    with pytest.raises(UserError, match=rf"--freeze is {stages + 1}, but {name} has {stages} stages or blocks"):
        first_stage_parameters(model, stages + 1)
    with pytest.raises(UserError, match="--freeze is -1"):
        first_stage_parameters(model, -1)


def test_classifier__is_found_wherever_it_is():
    for name, names in {
        "resnet18": {"fc.weight", "fc.bias"},
        "convnext_atto": {"head.fc.weight", "head.fc.bias"},
        "deit_tiny_distilled_patch16_224": {"head.weight", "head.bias", "head_dist.weight", "head_dist.bias"},
    }.items():
        with meta_device():
            assert classifier_parameters(timm.create_model(name)) == names
            assert classifier_parameters(timm.create_model(name, num_classes=0)) == set()
