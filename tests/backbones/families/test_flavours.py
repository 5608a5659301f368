"""timm's transformers in the flavours of the papers' programs: sizes, conversion, positions."""

import math

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.vit import checkpoint_filter_fn
from paucal.backbones.weights.checkpoints import rename_resnet
from vectors import recorded

DRLOC, ESVIT = "drloc_vit_base_patch16_224", "esvit_deit_small_patch16_224"
SMALL = {"embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3, "patch_size": 4}
COUNTS = [
    (DRLOC, 1000, 86_540_008, 17.564),
    (DRLOC, 100, 85_847_908, 17.564),
    (DRLOC, 10, 85_778_698, 17.564),
    ("esvit_deit_tiny_patch16_224", 0, 5_717_416 - 193_000, 1.254),  # timm's DeiT-T without its classifier
    (ESVIT, 0, 21_665_664, 4.60),
    ("esvit_vit_base_patch16_224", 0, 85_798_656, 17.56),
]


def build(name: str, **arguments: object) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, "img_size": 16, **arguments})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize(("name", "classes", "parameters", "cost"), COUNTS)
def test_variants__have_the_published_sizes_and_cost(name: str, classes: int, parameters: int, cost: float) -> None:
    with meta_device():
        model, counter = timm.create_model(name, num_classes=classes).eval(), FlopCounterMode(display=False)
        with counter:
            model(torch.zeros(1, 3, 224, 224))
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert counter.get_total_flops() / 2e9 == pytest.approx(cost, rel=5e-3)
    assert {norm.eps for norm in model.modules() if isinstance(norm, nn.LayerNorm)} == {1e-5 if name == DRLOC else 1e-6}


def test_drloc_vit__drops_after_projections_and_not_attention_weights() -> None:
    model = build(DRLOC)
    rates = {name: part.p for name, part in model.named_modules() if isinstance(part, nn.Dropout)}
    assert {name for name, rate in rates.items() if rate == 0.1} == {
        f"blocks.{index}.{part}" for index in range(2) for part in ("attn.proj_drop", "mlp.drop1", "mlp.drop2")
    }
    assert {rate for rate in rates.values()} == {0.0, 0.1}


def test_drloc_vit__starts_from_a_unit_normal_on_request() -> None:
    arguments = {"embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 3}
    torch.manual_seed(0)
    published, usual = (timm.create_model(DRLOC, **arguments, published_init=flag) for flag in (True, False))
    assert published.pos_embed.std().item() == pytest.approx(1, abs=0.05)
    assert published.cls_token.std().item() == pytest.approx(1, abs=0.3)
    assert usual.pos_embed.std().item() == pytest.approx(0.02, abs=0.002)
    weight = published.blocks[0].mlp.fc1.weight  # torch's default: uniform up to the root of 1 / inputs
    assert weight.abs().max().item() == pytest.approx(1 / 8, rel=0.01)
    assert usual.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, abs=0.002)


def lucidrains(width: int = 16, patch: int = 4, cells: int = 16, depth: int = 2, classes: int = 3) -> dict[str, Tensor]:
    """A state dict as DrLoc's program writes it."""
    shapes: dict[str, tuple[int, ...]] = {
        "pos_embedding": (1, cells + 1, width),
        "cls_token": (1, 1, width),
        "to_patch_embedding.1.weight": (width, patch * patch * 3),
        "to_patch_embedding.1.bias": (width,),
    }
    for index in range(depth):
        block = f"transformer.layers.{index}"
        shapes |= {f"{block}.{part}.norm.{kind}": (width,) for part in (0, 1) for kind in ("weight", "bias")}
        shapes |= {f"{block}.0.fn.to_qkv.weight": (3 * width, width)}
        shapes |= {f"{block}.0.fn.to_out.0.weight": (width, width), f"{block}.0.fn.to_out.0.bias": (width,)}
        shapes |= {f"{block}.1.fn.net.0.weight": (4 * width, width), f"{block}.1.fn.net.0.bias": (4 * width,)}
        shapes |= {f"{block}.1.fn.net.3.weight": (width, 4 * width), f"{block}.1.fn.net.3.bias": (width,)}
    shapes |= {"mlp_head.0.weight": (width,), "mlp_head.0.bias": (width,)}
    shapes |= {"mlp_head.1.weight": (classes, width), "mlp_head.1.bias": (classes,)}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_drloc_vit__reads_the_original_names_and_order_of_pixels() -> None:
    model, state = build(DRLOC), lucidrains()
    model.load_state_dict(checkpoint_filter_fn(state, model))
    image = torch.randn(1, 3, 16, 16)
    weight, bias = state["to_patch_embedding.1.weight"], state["to_patch_embedding.1.bias"]
    pixels = image[0, :, 4:8, 8:12].permute(1, 2, 0).flatten()  # the patch in row 1, column 2: row, column, channel
    torch.testing.assert_close(model.patch_embed(image)[0, 1 * 4 + 2], weight @ pixels + bias)
    assert torch.equal(model.blocks[1].mlp.fc2.weight, state["transformer.layers.1.1.fn.net.3.weight"])
    assert torch.equal(model.blocks[0].norm2.weight, state["transformer.layers.0.1.norm.weight"])


def test_converter__fits_positions_and_leaves_other_states_alone() -> None:
    wider = build(DRLOC, img_size=(16, 32))
    assert checkpoint_filter_fn(lucidrains(), wider)["pos_embed"].shape == wider.pos_embed.shape
    model = build(DRLOC)
    own, converted = model.state_dict(), checkpoint_filter_fn(model.state_dict(), model)
    assert converted.keys() == own.keys()
    assert all(torch.equal(converted[name], value) for name, value in own.items())
    foreign = {"pos_embedding": torch.zeros(2), "to_patch_embedding.1.weight": torch.zeros(5), "other": torch.zeros(1)}
    assert "other" in checkpoint_filter_fn(foreign, model)


@pytest.mark.parametrize("name", ["vit_tiny_cifar_patch4", "vit_mini"])
def test_other_vits__do_not_read_the_weights_of_drlocs_vit(name: str) -> None:
    assert "pos_embedding" in checkpoint_filter_fn(lucidrains(), timm.create_model(name))


@pytest.mark.parametrize("size", [(16, 16), (8, 8), (24, 24), (12, 20), (32, 8)])
def test_esvit_vit__resizes_positions_bicubically_to_each_image(size: tuple[int, int]) -> None:
    model = build(ESVIT)
    rows, columns = size[0] // 4, size[1] // 4
    cells = torch.randn(2, rows, columns, 16)
    positions = model.pos_embed[:, 1:].reshape(1, 4, 4, 16).permute(0, 3, 1, 2)
    if rows == columns:  # as the originals do, by one factor
        factor = math.sqrt(rows * columns / 16)
        resized = functional.interpolate(positions, scale_factor=factor, mode="bicubic")
    else:
        resized = functional.interpolate(positions, size=(rows, columns), mode="bicubic")
    expected = torch.cat(
        [
            (model.cls_token + model.pos_embed[:, :1]).expand(2, -1, -1),
            cells.flatten(1, 2) + resized.permute(0, 2, 3, 1).flatten(1, 2),
        ],
        dim=1,
    )
    torch.testing.assert_close(model._pos_embed(cells), expected)
    assert model(torch.randn(2, 3, *size)).shape == (2, 3)


def test_esvit_vit__is_timms_at_its_own_size() -> None:
    model, usual = build(ESVIT), timm.create_model("deit_small_patch16_224", **SMALL, img_size=16).eval()
    usual.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), usual(x))
    fixed = build(ESVIT, dynamic_img_size=False)
    torch.testing.assert_close(fixed(x), usual(x))
    with pytest.raises(AssertionError):
        fixed(torch.randn(2, 3, 8, 8))


def test_esvit_vit__starts_its_class_token_like_its_positions() -> None:
    model = timm.create_model("esvit_deit_tiny_patch16_224", depth=1)
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.3)


def test_esvit_vit__refuses_a_class_token_without_position() -> None:
    with pytest.raises(ValueError, match="no_embed_class is not supported"):
        build(ESVIT, no_embed_class=True)


def test_resnet__takes_the_names_of_drlocs_sequence() -> None:
    with meta_device():
        model = timm.create_model("resnet50", num_classes=100)
    names = {name: torch.zeros(0) for name, _, _ in recorded.load("drloc_resnet50")["state_dict"]}
    assert list(rename_resnet(names)) == list(model.state_dict())
    assert sum(p.numel() for p in timm.create_model("resnet50", num_classes=0).parameters()) == 23_508_032
