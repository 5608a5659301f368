"""What every registered backbone must do, on reduced builds: timm's contract and ours."""

import copy
import io
import math

import pytest
import timm
import torch
from timm.models import group_parameters
from timm.optim import create_optimizer_v2

from contracts.reduced_models import ONE_EACH, OURS, build, images, reduced
from paucal.backbones import BackboneSpec, FeatureBackbone
from paucal.backbones.attention_maps import attention_layers, recorded_attention
from paucal.backbones.empty_models import meta_device
from paucal.types import FeatureRequest
from rounding import exact_and_bound, require_within

every = pytest.mark.parametrize("name", OURS)
each = pytest.mark.parametrize("name", ONE_EACH)
each_transformer = pytest.mark.parametrize("name", [name for name in ONE_EACH if not name.startswith("resnet")])


def logits(model, x):
    with torch.no_grad():
        return model(x)


def close(actual, expected, tolerance=2e-5):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@every
def test_registered__is_listed_described_and_built_by_name(name):
    assert timm.is_model(name)
    config = timm.get_pretrained_cfg(name)
    assert config.num_classes > 0
    assert len(config.mean) == 3
    with meta_device():
        model = timm.create_model(name, num_classes=7)
    assert model.num_classes == 7
    assert model.get_submodule(config.first_conv) is not None
    assert model.pretrained_cfg["architecture"] == name


@each
def test_forward__gives_finite_logits_that_depend_on_the_image_alone(name):
    model, x = build(name), images(reduced(name).size, 3)
    out = logits(model, x)
    assert out.shape == (3, 5)
    assert torch.isfinite(out).all()
    assert out.std(0).min() > 0
    close(logits(model, x[1:2]), out[1:2])  # neither the batch size nor the neighbours matter


@each
def test_forward__is_the_same_with_convolutions_laid_out_channels_last(name):
    model, x = build(name), images(reduced(name).size, 2)
    expected = logits(model, x)
    last = model.to(memory_format=torch.channels_last)
    close(logits(last, x), expected)
    close(logits(last, x.to(memory_format=torch.channels_last)), expected)


@each
def test_forward__takes_other_sizes(name):
    model, others = build(name), reduced(name).others
    if reduced(name).bound:
        assert not others
        height, width = reduced(name).size
        wider = build(name, img_size=(height, width * 2))
        assert logits(wider, images((height, width * 2))).shape == (2, 5)
        return
    for size in others:
        assert logits(model, images(size)).shape == (2, 5)


@each
def test_backward__reaches_every_trainable_parameter(name):
    model = build(name).train()
    model(images(reduced(name).size, 4)).square().sum().backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    # A key's bias shifts all logits of a row alike, so that its gradient is zero up to rounding.
    missing = [n for n in without if model.get_parameter(n).grad is None]
    assert not missing
    # CvT's last queries of cells: the class token passes them by, and it alone is classified, as in the original.
    unread = ("bias", "blocks.1.attn.conv_proj_q.conv.weight", "blocks.1.attn.conv_proj_q.bn.weight")
    assert not [n for n in without if not n.endswith(unread[: 3 if name.startswith("cvt_") else 1])]


@each
def test_classifier__is_replaced_and_removed(name):
    model, x = build(name), images(reduced(name).size)
    features = model.forward_features(x)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    model.reset_classifier(3)
    assert logits(model, x).shape == (2, 3)
    assert model.num_classes == 3
    model.reset_classifier(0)
    close(logits(model, x), pooled.detach())
    bare = build(name, num_classes=0)
    assert logits(bare, x).shape == (2, bare.num_features)


@each
def test_input_channels__follow_in_chans(name):
    model = build(name, in_chans=1)
    assert logits(model, images(reduced(name).size, channels=1)).shape == (2, 5)


@each
def test_intermediates__are_maps_that_end_in_the_last_features(name):
    model, x = build(name), images(reduced(name).size)
    with torch.no_grad():
        final, maps = model.forward_intermediates(x)
        last_two = model.forward_intermediates(x, indices=2, intermediates_only=True)
        early = model.forward_intermediates(x, indices=[0], stop_early=True, intermediates_only=True)
        normed = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
        close(final, model.forward_features(x))
    assert len(maps) == len(model.feature_info)
    for one, info in zip(maps, model.feature_info, strict=True):
        assert one.shape[1] == info["num_chs"]
        height, width = reduced(name).size
        assert one.shape[2:] == (math.ceil(height / info["reduction"]), math.ceil(width / info["reduction"]))
        assert one.is_contiguous()
    for some, wanted in ((last_two, maps[-2:]), (early, maps[:1])):
        assert all(torch.equal(a, b) for a, b in zip(some, wanted, strict=True))
    backbone = FeatureBackbone(model, reduced(name).size)
    with torch.no_grad():
        close(normed[0], backbone(x).grids[0])


@each
def test_features_only__gives_the_maps_of_the_whole_model(name):
    model, x = build(name), images(reduced(name).size)
    count = len(model.feature_info)
    wanted = list(range(count))[-2:]
    reader = build(name, features_only=True, out_indices=wanted)
    state = {key.removeprefix("model."): value for key, value in reader.state_dict().items()}
    model.load_state_dict(state, strict=False)
    with torch.no_grad():
        maps = model.forward_intermediates(x, indices=wanted, intermediates_only=True)
        assert all(torch.equal(a, b) for a, b in zip(reader(x), maps, strict=True))
    assert reader.feature_info.channels() == [one.shape[1] for one in maps]
    assert not any(key.startswith(("head.", "aux_head.")) for key in state)


@each
def test_feature_backbone__reads_last_stages_and_blocks(name):
    model, x = build(name), images(reduced(name).size)
    backbone = FeatureBackbone(model, reduced(name).size)
    last, stages, blocks = backbone.extract(
        x, (FeatureRequest(), FeatureRequest("stages", norm=False), FeatureRequest("blocks", norm=False))
    )
    assert last.grids[0].shape == (2, backbone.dim, *backbone.grid)
    assert last.pooled.shape == (2, model.num_features)
    close(last.logits, model(x))
    assert len(stages.grids) == len(model.feature_info)
    assert len(blocks.grids) >= len(stages.grids)
    close(blocks.grids[-1], stages.grids[-1])


@each
def test_checkpointing__changes_neither_loss_nor_gradients(name):
    plain, saving = build(name), build(name)
    saving.set_grad_checkpointing(True)
    grads = []
    for model in (plain, saving):
        model.train()
        torch.manual_seed(3)
        model(images(reduced(name).size)).square().sum().backward()
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for key, value in grads[0].items():
        close(grads[1][key], value)


@each_transformer
def test_attention__paths_agree_and_weights_sum_to_one(name):
    model, x = build(name), images(reduced(name).size)
    fused = logits(model, x)
    assert attention_layers(model)
    with recorded_attention(model) as maps:
        close(logits(model, x), fused)
    assert maps.keys() == attention_layers(model).keys()
    for weights in maps.values():
        close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert not any(layer.fused_attn is False for layer in attention_layers(model).values())


@each
def test_state__saves_loads_and_copies(name):
    model, other, x = build(name), build(name, seed=9), images(reduced(name).size)
    assert not torch.allclose(logits(model, x), logits(other, x))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(logits(other, x), logits(model, x))
    assert torch.equal(logits(copy.deepcopy(model), x), logits(model, x))


@each
def test_spec__builds_the_same_model_again(name):
    arguments, size = dict(reduced(name).arguments), reduced(name).size
    arguments.pop("img_size", None)
    spec = BackboneSpec(name, 5, image_size=size, arguments=arguments)
    again = BackboneSpec.from_dict(spec.to_dict())
    first, second = spec.build(), again.build()
    second.load_state_dict(first.state_dict())
    x = images(size)
    assert torch.equal(logits(first.model.eval(), x), logits(second.model.eval(), x))


@each
def test_layer_groups__cover_every_parameter_from_stem_to_head(name):
    model = build(name)
    groups = group_parameters(model, model.group_matcher(coarse=False))
    found = [parameter for members in groups.values() for parameter in members]
    assert sorted(found) == sorted(n for n, _ in model.named_parameters())
    first = timm.get_pretrained_cfg(name).first_conv
    assert any(n.startswith(first) for n in groups[0])
    blocks = len(FeatureBackbone(model, reduced(name).size).shapes(FeatureRequest("blocks", norm=False)))
    assert len(groups) == blocks + 2  # the stem, a group per block, the classifier


@each_transformer
def test_weight_decay__is_off_for_full_names_that_exist(name):
    model = build(name)
    names = {n for n, _ in model.named_parameters()}
    assert set(model.no_weight_decay()) <= names | {"pos_embed", "cls_token", "dist_token", "reg_token"}  # timm's ViT
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.1)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    for n, p in model.named_parameters():
        if n in model.no_weight_decay():
            assert id(p) not in decayed


@each
@pytest.mark.slow
def test_compile__traces_the_whole_model(name):
    model, x = build(name), images(reduced(name).size)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    close(logits(compiled, x), logits(model, x))


@each
def test_autocast__stays_in_bfloat16_as_close_as_rounding_allows(name):
    model, x = build(name), images(reduced(name).size, 1)
    exact, bound = exact_and_bound(model, x, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        require_within(logits(model, x), exact, bound)


@pytest.mark.slow
@each
def test_export__keeps_the_function(name):
    model, x = build(name), images(reduced(name).size)
    program = torch.export.export(model, (x,))
    close(program.module()(x), logits(model, x))


@pytest.mark.slow
@each
def test_compile__by_inductor_keeps_the_function(name):
    model, x = build(name), images(reduced(name).size)
    torch.compiler.reset()
    close(logits(torch.compile(model), x), logits(model, x), 1e-4)
