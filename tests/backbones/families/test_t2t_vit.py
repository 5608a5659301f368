"""T2T-ViT: every option, other image sizes, checkpoints of other sizes."""

import pytest
import timm
import torch
from torch.nn import functional

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones import fit_to_image_size
from paucal.backbones.attention_maps import attention_layers
from paucal.backbones.families.t2t_vit import checkpoint_filter_fn, sinusoid
from paucal.backbones.weights.start import StartWeights, start_from
from paucal.training.module import parameter_groups

SMALL = {"depth": 2, "embed_dim": 32, "num_heads": 2, "token_dim": 16, "img_size": (32, 48), "num_classes": 5}
both = pytest.mark.parametrize("kind", ["performer", "transformer"])


def build(seed=0, **arguments):
    """A small model whose weights are large enough for every part to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = timm.create_model("t2t_vit_14", **{**SMALL, **arguments}).eval()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name and parameter.ndim == 1 else 0.0, 0.2)
    return model


def images(height=32, width=48, count=2, channels=3, seed=1):
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(seed))


def run(model, x, seed=0):
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        return model(x)


@both
def test_fixed_parts__are_stored_and_not_trained(kind) -> None:
    model = build(tokens_type=kind)
    fixed = {name for name, p in model.named_parameters() if not p.requires_grad}
    features = {"tokens_to_token.attention1.w", "tokens_to_token.attention2.w"} if kind == "performer" else set()
    assert fixed == {"pos_embed", *features}
    assert fixed <= set(model.state_dict())
    trained = {name for group in parameter_groups(model) for name in group["names"]}
    assert trained == {name for name, _ in model.named_parameters()} - fixed
    assert torch.equal(model.pos_embed, sinusoid(1 + 2 * 3, 32))
    model.train()(images()).square().sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is None} == fixed


def test_other_sizes__are_refused_unless_the_model_may_follow_them() -> None:
    with pytest.raises(ValueError, match="48x32 pixels, but the model is built for 32x48: call set_input_size"):
        run(build(), images(48, 32))
    assert run(build(dynamic_img_size=True), images(48, 32)).shape == (2, 5)


def test_set_input_size__interpolates_the_grid_and_keeps_the_class_entry() -> None:
    model, following = build(), build(dynamic_img_size=True)
    before = model.pos_embed.detach().clone()
    model.set_input_size((64, 96))
    assert torch.equal(model.pos_embed[:, :1], before[:, :1])
    grid = before[:, 1:].transpose(1, 2).reshape(1, 32, 2, 3)
    expected = functional.interpolate(grid, size=(4, 6), mode="bicubic").flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.pos_embed[:, 1:], expected)
    assert not model.pos_embed.requires_grad
    assert not torch.allclose(model.pos_embed, build(img_size=(64, 96)).pos_embed, atol=0.1)
    x = images(64, 96)
    torch.testing.assert_close(run(following, x), run(model, x))


@both
def test_checkpoints__of_another_size_load_with_interpolated_positions(kind) -> None:
    source, target = build(seed=1, img_size=32, tokens_type=kind), build(img_size=(64, 96), tokens_type=kind)
    report = start_from(target, StartWeights({"model": source.state_dict()}, "an example"), head="keep")
    assert report.adapted == {"pos_embed": "resampled from 5 to 25 positions"}
    assert report.share == 1
    source.set_input_size((64, 96))
    assert torch.equal(run(target, images(64, 96)), run(source, images(64, 96)))


def test_checkpoints__of_a_grid_that_is_not_square_keep_it() -> None:
    source, target = build(seed=1), build(img_size=(64, 96))
    given = StartWeights({"model": source.state_dict()}, "an example", grid=(2, 3))
    report = start_from(target, given, head="keep")
    assert report.adapted == {"pos_embed": "resampled from 7 to 25 positions"}
    assert torch.equal(target.pos_embed[:, 0], source.pos_embed[:, 0])


@both
def test_checkpoints__of_colours_load_for_gray_images(kind) -> None:
    source, target = build(tokens_type=kind), build(seed=1, in_chans=1, tokens_type=kind)
    norm = source.tokens_to_token.attention1.norm1
    for part in (norm.weight, norm.bias):  # alike for the channels, so that the conversion is exact
        part.data = part.data[:49].repeat(3)
    report = start_from(target, StartWeights({"model": source.state_dict()}, "an example"), head="keep")
    assert (report.share, report.fresh) == (1.0, ())
    gray = images(channels=1)
    torch.testing.assert_close(run(target, gray), run(source, gray.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)


@both
def test_checkpoint_filter__leaves_own_and_foreign_states_alone(kind) -> None:
    model = build(tokens_type=kind)
    own = model.state_dict()
    assert all(value is own[name] for name, value in checkpoint_filter_fn(own, model).items())
    foreign = {
        "pos_embed": torch.zeros(3),
        "tokens_to_token.attention1.norm1.weight": torch.zeros(()),
        "tokens_to_token.attention1.kqv.weight": torch.zeros(2, 2),
        "tokens_to_token.attention1.attn.qkv.weight": torch.zeros(48, 50),
    }
    converted = checkpoint_filter_fn(foreign, model)
    assert all(converted[name] is value for name, value in foreign.items())


def test_patch_size__moves_the_windows_and_keeps_the_weights() -> None:
    usual, finer = build(img_size=32), build(img_size=32, patch_size=4)
    assert finer.tokens_to_token.grid_size == (8, 8)
    assert finer.forward_features(images(32, 32)).shape == (2, 65, 32)
    assert finer.feature_info[0]["reduction"] == 4
    shapes = [{n: p.shape for n, p in model.named_parameters() if n != "pos_embed"} for model in (usual, finer)]
    assert shapes[0] == shapes[1]
    sizing = fit_to_image_size("t2t_vit_7", (32, 32))
    assert (sizing.grid, sizing.arguments["patch_size"]) == ((8, 8), 4)


@pytest.mark.parametrize(
    ("size", "grid"), [((224, 224), (14, 14)), ((64, 96), (4, 6)), ((100, 30), (7, 2)), (3, (1, 1))]
)
def test_grid__is_counted_for_any_size(size, grid) -> None:
    model = build(img_size=size)
    assert model.tokens_to_token.grid_size == grid
    height, width = model.tokens_to_token.img_size
    maps = model.forward_intermediates(images(height, width), intermediates_only=True)
    assert maps[-1].shape == (2, 32, *grid)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patch_size": 6}, "patch_size is 6; it must be a multiple of 4 up to 28"),
        ({"patch_size": 32}, "patch_size is 32"),
        ({"img_size": (2, 32)}, "images of 2x32 pixels are smaller than a window; use 3 pixels or more"),
        ({"tokens_type": "convolution"}, "tokens_type is 'convolution'; choose one of performer, transformer"),
        ({"kernel_ratio": 1.5}, "24 random features of 16 channels cannot be orthogonal"),
        ({"num_heads": 5}, "embed_dim is 32, but must be a multiple of num_heads, which is 5"),
        ({"depth": 0}, "depth is 0"),
        ({"global_pool": "max"}, "global_pool is 'max'"),
    ],
)
def test_constructor__refuses_values_that_make_no_model(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        timm.create_model("t2t_vit_14", **{**SMALL, **arguments})


@pytest.mark.parametrize(
    ("arguments", "acts"),
    [
        ({"token_drop_rate": 0.0}, False),
        ({}, True),  # the published 0.1
        ({"tokens_type": "transformer"}, False),
        ({"tokens_type": "transformer", "token_drop_rate": 0.5}, True),
        *[
            ({"token_drop_rate": 0.0, rate: 0.5}, True)
            for rate in ("drop_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate")
        ],
    ],
)
def test_dropouts__act_in_training_alone(arguments, acts) -> None:
    model, x = build(**arguments), images(count=8)
    still = run(model, x)
    moving = run(model.train(), x)
    assert torch.allclose(moving, still, rtol=1e-5, atol=1e-5) is not acts
    assert torch.equal(run(model, x, seed=0), moving)


def test_performer_layer__drops_after_projection_and_mlp_at_the_rate_given() -> None:
    layer = build(token_drop_rate=0.3).tokens_to_token.attention2
    assert (layer.drop.p, layer.mlp[3].p) == (0.3, 0.3)
    assert build().tokens_to_token.attention1.drop.p == 0.1


def test_options__change_what_they_name() -> None:
    model, x = build(), images()
    assert torch.equal(run(build(qk_scale=16**-0.5), x), run(model, x))
    assert not torch.allclose(run(build(qk_scale=32**-0.5), x), run(model, x), atol=1e-3)
    assert "blocks.1.attn.qkv.bias" in build(qkv_bias=True).state_dict()
    assert "blocks.1.attn.qkv.bias" not in model.state_dict()
    assert build(kernel_ratio=0.25).tokens_to_token.attention1.w.shape == (4, 16)
    assert build(mlp_ratio=2.0).blocks[0].mlp.fc1.out_features == 64
    averaging = build(global_pool="avg")
    tokens = averaging.forward_features(x)
    torch.testing.assert_close(averaging.forward_head(tokens), averaging.head(tokens[:, 1:].mean(1)))
    torch.testing.assert_close(model.forward_head(tokens), model.head(tokens[:, 0]))


def test_attention_weights__can_be_read_where_there_are_any() -> None:
    blocks = ["blocks.0.attn", "blocks.1.attn"]
    assert list(attention_layers(build())) == blocks
    stem = ["tokens_to_token.attention1.attn", "tokens_to_token.attention2.attn"]
    assert sorted(attention_layers(build(tokens_type="transformer"))) == sorted([*stem, *blocks])


def test_attention__paths_agree_in_value_and_gradient() -> None:
    found = []
    for fused in (True, False):
        model, x = build(tokens_type="transformer"), images().requires_grad_()
        for name in attention_layers(model):
            model.get_submodule(name).fused_attn = fused  # type: ignore[assignment]
        out = model(x)
        out.square().sum().backward()
        found.append([out.detach(), x.grad, *(p.grad for p in model.parameters() if p.requires_grad)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)
    assert not torch.equal(found[0][1], found[1][1])  # they were two paths


@both
def test_checkpointing__computes_token_layers_again(kind) -> None:
    model, calls = build(tokens_type=kind).train(), []
    model.tokens_to_token.attention1.register_forward_pre_hook(lambda *_: calls.append(1))
    model(images()).sum().backward()
    assert len(calls) == 1
    model.set_grad_checkpointing(True)
    model(images()).sum().backward()
    assert len(calls) == 3


def test_compile__traces_autocast_whole() -> None:
    model, x = build(depth=1), images()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(run(compiled, x), run(model, x))


def test_weight_decay__leaves_the_class_token() -> None:
    assert build().no_weight_decay() == {"cls_token"}
