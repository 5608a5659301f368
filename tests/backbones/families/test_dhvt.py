"""DHVT's variants: sizes, cost, what the original programs computed, and timm's contract."""

import copy
from typing import NamedTuple

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.attention_maps import recorded_attention
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.dhvt import checkpoint_filter_fn
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.weights.start import StartWeights, start_from
from paucal.training.module import undecayed_parameters
from paucal.types import UserError
from vectors import recorded


class Variant(NamedTuple):
    name: str
    parameters: int
    gmacs: float
    entries: int  # of the state dict
    heads: int
    tokens: int  # class, cells and head tokens in each attention


VARIANTS = [
    Variant("dhvt_tiny_cifar_patch4", 6_008_650, 0.388, 477, 4, 69),
    Variant("dhvt_small_cifar_patch4", 23_425_450, 1.529, 477, 8, 73),
    Variant("dhvt_tiny_cifar_patch2", 5_845_162, 1.705, 471, 4, 261),
    Variant("dhvt_small_cifar_patch2", 22_766_698, 6.195, 471, 8, 265),
    Variant("dhvt_tiny_domain_patch16", 6_105_975, 1.358, 489, 4, 201),
    Variant("dhvt_small_domain_patch16", 23_788_431, 5.033, 489, 6, 203),
    Variant("dhvt_tiny_imagenet_patch16", 6_267_334, 1.355, 489, 3, 200),
    Variant("dhvt_small_imagenet_patch16", 24_040_606, 5.033, 489, 6, 203),
]
PLAIN = [
    ("vit_tiny_cifar_patch4", 5_380_132, 4),
    ("vit_small_cifar_patch4", 21_376_996, 8),
    ("vit_tiny_cifar_patch2", 5_380_132 - 36 * 192 + 192 * 192, 4),  # smaller kernels, 192 more positions
    ("vit_small_cifar_patch2", 21_376_996 - 36 * 384 + 192 * 384, 8),
]


def build(name: str = "dhvt_tiny_cifar_patch4", **arguments: object) -> nn.Module:
    """Build a small model with a bit of everything in its batch norms."""
    torch.manual_seed(0)
    small = {"embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
    model = timm.create_model(name, **{**small, **arguments})
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    return model.eval()


def images(height: int = 32, width: int = 32, count: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(1))


def meta(name: str, **arguments: object) -> nn.Module:
    with meta_device():
        return timm.create_model(name, **arguments)


def gmacs(model: nn.Module, side: int | None = None) -> float:
    side = side or model.pretrained_cfg["input_size"][-1]
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, side, side, device="meta"))
    return counter.get_total_flops() / 2e9


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_variants__have_the_published_sizes(variant: Variant) -> None:
    model = meta(variant.name)
    assert parameters(model) == variant.parameters
    assert len(model.state_dict()) == variant.entries
    assert [block.attn.num_heads for block in model.blocks] == [variant.heads] * 12


@pytest.mark.parametrize(
    "variant",
    [pytest.param(one, marks=[pytest.mark.slow] * (index > 0), id=one.name) for index, one in enumerate(VARIANTS)],
)
def test_variants__have_the_published_costs(variant: Variant) -> None:
    model = meta(variant.name).eval()
    with recorded_attention(model) as maps:
        assert gmacs(model) == pytest.approx(variant.gmacs, rel=0.005)
    assert maps["blocks.11.attn"].shape == (1, variant.heads, variant.tokens, variant.tokens)


def test_variants__have_the_published_sizes_with_other_classes_and_inputs() -> None:
    assert parameters(meta("dhvt_tiny_cifar_patch4", num_classes=10)) == 5_991_280
    assert parameters(meta("dhvt_small_cifar_patch2", num_classes=10)) == 22_732_048
    assert parameters(meta("dhvt_tiny_imagenet_patch16", num_classes=345)) == 6_140_919
    assert parameters(meta("dhvt_tiny_domain_patch16", num_classes=100)) == 6_058_690
    assert parameters(meta("dhvt_small_imagenet_patch16", num_classes=100)) == 23_694_106


@pytest.mark.slow
def test_variants__have_the_published_cost_at_384_pixels() -> None:
    assert gmacs(meta("dhvt_tiny_imagenet_patch16").eval(), 384) == pytest.approx(4.974, rel=0.005)


@pytest.mark.parametrize(("name", "count", "heads"), PLAIN)
def test_plain_transformers__have_the_sizes_of_deit_at_32_pixels(name: str, count: int, heads: int) -> None:
    model = meta(name)
    assert parameters(model) == count
    assert model.blocks[0].attn.num_heads == heads
    assert model.num_classes == 100
    assert meta(name, num_heads=3, depth=1).blocks[0].attn.num_heads == 3


@pytest.mark.slow
def test_plain_transformers__have_the_cost_of_deit_at_32_pixels() -> None:
    assert gmacs(meta("vit_small_cifar_patch4").eval()) == pytest.approx(1.420, rel=0.005)


def check_recorded(name: str, rule: str) -> dict[str, float]:
    """Compare a model with what the original computed; returns the largest differences."""
    record = recorded.load(name)
    model = timm.create_model(name).eval()
    assert set(model.state_dict()) == {entry for entry, _, _ in record["state_dict"]}
    report = start_from(
        model, StartWeights({"model": recorded.filled_state(record, rule)}, "the original"), head="keep"
    )
    assert (report.share, report.unused, report.fresh, dict(report.adapted)) == (1.0, (), (), {})
    off: dict[str, float] = {}
    for run in (run for run in record["runs"] if run["fill"] == rule):
        inputs = recorded.images(run)
        with torch.no_grad():
            final, (cells,) = model.forward_intermediates(inputs, indices=1, output_fmt="NLC")
            off["logits"] = recorded.require_outputs(model.forward_head(final), run)
        off["pre_norm"] = recorded.require_grid(cells, run, "pre_norm")
        off["post_norm"] = recorded.require_grid(final[:, 1:], run, "post_norm")
    return off


def test_recorded__the_tiny_model_equals_the_original() -> None:
    assert set(check_recorded("dhvt_tiny_cifar_patch4", "mix")) == {"logits", "pre_norm", "post_norm"}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mix", "sine"])
@pytest.mark.parametrize("name", [variant.name for variant in VARIANTS])
def test_recorded__every_variant_equals_the_original(name: str, rule: str) -> None:
    print(name, rule, check_recorded(name, rule))


def test_sizes__take_images_that_are_not_square_or_no_multiple() -> None:
    model = build()
    for height, width, grid in ((16, 48, (4, 12)), (30, 33, (8, 9)), (4, 4, (1, 1))):
        maps = model.forward_intermediates(images(height, width), indices=1, intermediates_only=True)
        assert maps[0].shape == (2, 32, *grid)
        assert model(images(height, width)).shape == (2, 5)


def test_sizes__rows_and_columns_keep_their_places() -> None:
    model, plain = build(depth=1), images(16, 48, 1)
    model.blocks[0].attn.proj.weight.data.zero_()  # no mixing over the whole image
    changed = plain.clone()
    changed[:, :, 0:4, 40:44] += 1  # the cell of row 0 and column 10
    before, after = (model.forward_intermediates(one, intermediates_only=True)[0] for one in (plain, changed))
    rows, columns = (before - after).abs().sum((0, 1)).nonzero().unbind(1)
    assert set(rows.tolist()) <= {0, 1, 2}
    assert {10} <= set(columns.tolist()) <= {8, 9, 10, 11}


def test_batches__of_one_give_the_same() -> None:
    model, two = build(), images()
    torch.testing.assert_close(model(two)[:1], model(two[:1]))


def test_weight_decay__spares_tokens_positions_of_heads_and_affines() -> None:
    model = build(depth=1, abs_pos=True)
    affines = [f"patch_embed.{side}_affine.{part}" for side in ("pre", "post") for part in ("alpha", "beta")]
    assert model.no_weight_decay() == {"cls_token", "pos_embed", "blocks.0.attn.pos_embed", *affines}
    assert model.no_weight_decay() <= set(undecayed_parameters(model))
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    scales = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    by_name = dict(model.named_parameters())
    decayed = {name for name, parameter in by_name.items() if decays[id(parameter)]}
    assert decayed == {name for name, p in by_name.items() if p.ndim > 1} - model.no_weight_decay()
    assert [scales[id(by_name[name])] for name in (affines[0], "blocks.0.attn.pos_embed", "head.weight")] == [
        0.25,
        0.5,
        1.0,
    ]


def test_gradients__reach_every_parameter() -> None:
    model = build().train()
    nn.functional.cross_entropy(model(images(count=4)), torch.tensor([0, 1, 2, 3])).backward()
    sizes = {name: p.grad.abs().max().item() for name, p in model.named_parameters() if p.grad is not None}
    assert set(sizes) == {name for name, _ in model.named_parameters()}
    # A batch norm takes away the bias before it, and the class token alone counts after the last block.
    without = {name for name, size in sizes.items() if size < 1e-8}
    assert all(name.endswith(("conv1.bias", "conv2.bias", "conv3.bias")) for name in without)


@pytest.mark.parametrize("daff_norm", ["batch", "layer"])
def test_checkpointing__gives_the_same_gradients_and_statistics(daff_norm: str) -> None:
    outcomes = []
    for enable in (False, True):
        model = build(daff_norm=daff_norm, drop_path_rate=0.5, attn_drop_rate=0.1).train()
        model.set_grad_checkpointing(enable)
        torch.manual_seed(3)
        logits = model(images(count=4))
        logits.square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        outcomes.append((logits, gradients, dict(model.named_buffers())))
    torch.testing.assert_close(*outcomes)
    counts = [value.item() for name, value in outcomes[1][2].items() if name.endswith("num_batches_tracked")]
    assert counts
    assert set(counts) == {1}


def test_checkpointing__computes_blocks_twice() -> None:
    model, calls = build().train(), []
    model.blocks[0].norm1.register_forward_hook(lambda *_: calls.append(1))
    model.set_grad_checkpointing()
    model(images()).sum().backward()
    assert len(calls) == 2


def test_norms__can_be_converted_to_synchronised_ones() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(build())
    assert sum(isinstance(module, nn.SyncBatchNorm) for module in model.modules()) == 2 + 2 * 3


@pytest.mark.slow
def test_compiling__resamples_positions_and_checkpoints_without_breaks() -> None:
    model = build(sope=False, abs_pos=True, dynamic_img_size=True).train()
    model.set_grad_checkpointing()
    inputs = images(32, 48)
    again = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(again, backend="aot_eager", fullgraph=True)
    outcomes = []
    for run, owner in ((model, model), (compiled, again)):
        logits = run(inputs)
        logits.square().sum().backward()
        outcomes.append((logits, [p.grad for p in owner.parameters()], list(owner.buffers())))
    torch.testing.assert_close(*outcomes, atol=1e-4, rtol=1e-4)


def test_feature_grids__are_read_in_every_way() -> None:
    backbone = FeatureBackbone(build(), (32, 48))
    assert (backbone.grid, backbone.dim, backbone.cell_size) == ((8, 12), 32, (4, 4))
    blocks = build(features_only=True, out_indices=(0, 1))(images(32, 48))
    assert [tuple(grid.shape) for grid in blocks] == [(2, 32, 8, 12)] * 2


def test_starting__fits_other_channels_and_sizes() -> None:
    source, gray = build(abs_pos=True), build(abs_pos=True, in_chans=1, img_size=(32, 48))
    with torch.no_grad():
        source.patch_embed.pre_affine.alpha.copy_(torch.tensor([1.0, 2.0, 6.0]).view(1, 3, 1, 1))
    report = start_from(gray, StartWeights({"model": source.state_dict()}, "colours"), head="keep")
    assert (report.share, report.fresh, report.unused) == (1.0, (), ())
    assert gray.patch_embed.pre_affine.alpha.tolist() == [[[[3.0]]]]
    table = source.pos_embed[:, 1:].detach().reshape(1, 8, 8, 32).permute(0, 3, 1, 2)
    wide = nn.functional.interpolate(table, (8, 12), mode="bicubic")
    torch.testing.assert_close(gray.pos_embed[:, 1:], wide.flatten(2).transpose(1, 2))


def test_starting__refuses_weights_of_another_number_of_heads() -> None:
    three, four = build(num_heads=2), build(num_heads=4)
    with pytest.raises(
        UserError, match=r"for example, 'blocks.0.attn.pos_embed' is 1x2x32 in the file and 1x4x32 in the model"
    ):
        start_from(four, StartWeights({"model": three.state_dict()}, "two heads"))


def test_conversion__leaves_own_and_foreign_names_alone() -> None:
    model = build(abs_pos=True)
    own = model.state_dict()
    converted = checkpoint_filter_fn(own, model)
    assert list(converted) == list(own)
    assert all(converted[name] is own[name] for name in own)
    foreign = {"conv1.weight": torch.zeros(1), "pos_embed": torch.zeros(3), "epoch": 7}
    assert checkpoint_filter_fn(foreign, build()) == foreign
    assert set(checkpoint_filter_fn(foreign, model)) == set(foreign)
