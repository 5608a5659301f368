"""Every row of DHVT's published ablations can be built, and differs from the others as it should."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import paucal.backbones  # noqa: F401 (registers our models)
from backbones.dhvt_ablations import ABLATIONS, PLAIN, TINY, Ablation
from paucal.backbones import BackboneSpec
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.dhvt import Dhvt, DhvtParts

FULL, SMALL, VIT = 6_008_650, 23_425_450, 5_380_132


def heads_of(width: int, heads: int) -> int:
    """Parameters of the head tokens of a block: projection, norm and positions."""
    return width * (width // heads) + width + 2 * (width // heads) + heads * width


PER_BLOCK = {  # parameters that an operation adds to a block or takes from it
    "head tokens": heads_of(192, 4),
    "gate": 2 * 192 * 48 + 48 + 192,
    "norms of DAFF": 2 * (768 + 768 + 192),
    "local": 10 * 768,
}
AFFINES = 2 * 3 + 2 * 192
STEM = 9 * 3 * 96 + 2 * 96 + 9 * 96 * 192 + 2 * 192  # convolutions and norms
PATCHES = 48 * 192 + 192
POSITIONS = 65 * 192
DAFF = 12 * (PER_BLOCK["gate"] + PER_BLOCK["norms of DAFF"] + PER_BLOCK["local"])
EXPECTED = {
    "ViT": VIT,
    "ViT + split CLS": VIT,
    "ViT + split CLS + agg on CLS": VIT + 12 * PER_BLOCK["gate"],
    "ViT + split CLS + AvgPool": VIT,
    "DHVT": FULL,
    "DHVT w/o affine": FULL - AFFINES,
    "ViT + SOPE": VIT - PATCHES + STEM + AFFINES,
    "ViT + SOPE w/o affine": VIT - PATCHES + STEM,
    "DHVT (agg on all tokens)": FULL,
    "DHVT (w/o shortcut)": FULL,
    "ViT-T, 3 heads": VIT,
    "ViT-T, 4 heads": VIT,
    "DHVT-T, 3 heads": FULL + 12 * (heads_of(192, 3) - heads_of(192, 4)),
    "DHVT-T, 4 heads": FULL,
    "DHVT-S, 4 heads": SMALL + 12 * (heads_of(384, 4) - heads_of(384, 8)),
    "DHVT-S, 6 heads": SMALL + 12 * (heads_of(384, 6) - heads_of(384, 8)),
    "DHVT-S, 8 heads": SMALL,
    "BN-BN": FULL,
    "BN-LN": FULL,
    "LN-BN": FULL,
    "LN-LN": FULL,
    "ViT-T": VIT,
    "ViT-T + head tokens": VIT + 12 * PER_BLOCK["head tokens"],
    "SOPE, with positions": VIT - PATCHES + STEM + AFFINES,
    "SOPE, without positions": VIT - PATCHES + STEM + AFFINES - POSITIONS,
    "DAFF, with positions": VIT + DAFF,
    "DAFF, without positions": VIT + DAFF - POSITIONS,
    "SOPE and DAFF, with positions": FULL - 12 * PER_BLOCK["head tokens"] + POSITIONS,
    "SOPE and DAFF, without positions": FULL - 12 * PER_BLOCK["head tokens"],
    "DHVT w/o head tokens": FULL - 12 * PER_BLOCK["head tokens"],
}


def small(arguments: Any, **further: Any) -> nn.Module:
    torch.manual_seed(0)
    chosen = {"embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 5, **arguments, **further}
    return timm.create_model(TINY, **chosen).eval()


def images(height: int = 32, width: int = 32, count: int = 2) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("row", ABLATIONS, ids=lambda row: f"{row.source}: {row.name}")
def test_rows__have_the_parameters_that_their_parts_add_up_to(row: Ablation) -> None:
    with meta_device():
        model = timm.create_model(row.model, **row.arguments)
    assert sum(parameter.numel() for parameter in model.parameters()) == EXPECTED[row.name]
    heads = row.arguments.get("num_heads", 4)
    assert [block.attn.num_heads for block in model.blocks] == [heads] * 12
    layers = sum("LayerNorm2d" in type(module).__name__ for module in model.modules())
    arguments = {"sope_norm": "batch", "daff_norm": "batch", **row.arguments}
    assert layers == 2 * (arguments["sope_norm"] == "layer") + 36 * (arguments["daff_norm"] == "layer")


def test_rows__of_one_table_compute_different_things() -> None:
    for source in sorted({row.source for row in ABLATIONS}):
        outputs = []
        for row in (row for row in ABLATIONS if row.source == source and row.model == TINY):
            model = small(row.arguments)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(2).add_(0.1)  # gates and affines start where they do next to nothing
            outputs.append((row.name, model.train()(images())))
        for index, (name, one) in enumerate(outputs):
            for other_name, other in outputs[:index]:
                assert (one - other).abs().max() > 1e-4, f"{source}: {name} is {other_name}"


def test_rows__hold_the_published_scores() -> None:
    scores = {(row.source, row.name): row.accuracy for row in ABLATIONS}
    assert len(scores) == len(ABLATIONS) == 32
    assert scores["Table 2", "ViT + split CLS + AvgPool"] == {512: 70.48}
    assert scores["Table 3", "DHVT (agg on all tokens)"] == {512: 78.34}
    assert scores["Table 5", "LN-BN"] == {128: 79.24, 256: 80.02, 512: 80.26}
    assert max((max(a.values()), name) for (_, name), a in scores.items() if a) == (82.82, "DHVT-S, 8 heads")
    assert {name for (source, name), a in scores.items() if not a} == {
        name for (source, name) in scores if source.startswith("Figure")
    }


def test_rows__can_be_stored_with_a_model() -> None:
    for row in ABLATIONS:
        spec = BackboneSpec(row.model, 100, image_size=(32, 32), arguments=row.arguments)
        assert BackboneSpec.from_dict(spec.to_dict()) == spec


def test_plain__computes_what_timms_vision_transformer_does() -> None:
    torch.manual_seed(0)
    arguments = {"embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 5}
    vit = timm.create_model("vit_tiny_cifar_patch4", **arguments).eval()
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    model = small(PLAIN)
    model.load_state_dict(vit.state_dict())  # strict: the names are the same
    torch.testing.assert_close(model(images()), vit(images()))
    torch.testing.assert_close(model.forward_features(images()), vit.forward_features(images()))


def test_positions__bind_a_model_to_its_size_until_it_is_changed() -> None:
    model = small({"abs_pos": True, "img_size": (16, 32)})
    assert model.pos_embed.shape == (1, 1 + 4 * 8, 48)
    with pytest.raises(ValueError, match=r"the images have 8x4 patches, but the model is built for 4x8"):
        model(images(32, 16))
    dynamic = small({"abs_pos": True, "img_size": (16, 32)}, dynamic_img_size=True)
    dynamic.load_state_dict(model.state_dict())
    expected = dynamic(images(32, 16))
    model.set_input_size((32, 16))
    assert model.patch_embed.grid_size == (8, 4)
    torch.testing.assert_close(model(images(32, 16)), expected)


def test_positions__are_added_to_class_token_and_cells() -> None:
    model = small({"abs_pos": True})
    with torch.no_grad():
        model.pos_embed.zero_()
    zero, _ = model.embed(images())
    with torch.no_grad():
        model.pos_embed.copy_(torch.arange(65.0).view(1, 65, 1).expand(1, 65, 48))
    added, _ = model.embed(images())
    torch.testing.assert_close((added - zero)[..., 0], torch.arange(65.0).expand(2, 65), atol=1e-4, rtol=0)


def test_plain_patches__refuse_images_that_they_cut() -> None:
    model = small({"sope": False})
    assert model(images(16, 24)).shape == (2, 5)
    with pytest.raises(ValueError, match="images have 16x26 pixels; both sides must be multiples of the patch of 4"):
        model(images(16, 26))
    with pytest.raises(ValueError, match="images have 30x30 pixels"):
        small({"sope": False}, img_size=30)
    with pytest.raises(ValueError, match="images have 30x30 pixels"):
        model.set_input_size(30)


def test_drop_path__grows_linearly() -> None:
    model = small({}, depth=3, drop_path_rate=0.2)
    assert [getattr(block.drop_path, "drop_prob", 0.0) for block in model.blocks] == pytest.approx([0, 0.1, 0.2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"local": "max"}, "local is 'max'; it must be one of 'conv', 'pool', 'none', None"),
        ({"sope_norm": "group"}, "sope_norm is 'group'; it must be one of 'batch', 'layer'"),
        ({"aggregate": "cells"}, "aggregate is 'cells'; it must be one of 'cls', 'all', 'none', None"),
        ({"daff": 1}, "daff is 1; it must be one of True, False"),
        ({"num_heads": 5}, "num_heads is 5; embed_dim, which is 192, must be a multiple of num_heads"),
        ({"img_size": (32, 32, 3)}, "img_size is .* expected one side, or .height, width., in whole pixels"),
        ({"global_pool": "max"}, "global_pool is 'max', but Dhvt only supports 'token', 'avg', ''"),
    ],
)
def test_arguments__are_checked(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Dhvt(**{"embed_dim": 192, "depth": 1, "num_heads": 4, "patch_size": 4, **arguments})


def test_arguments__that_do_not_exist_are_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sop'"):
        Dhvt(sop=False)


def test_parts__follow_the_kind_of_feed_forward_unless_given() -> None:
    on = {"local": "conv", "shortcut": True, "split_cls": True, "aggregate": "cls"}
    assert DhvtParts().feed_forward_options() == on
    assert DhvtParts(shortcut=False).feed_forward_options() == {**on, "shortcut": False}
    off = {"local": "none", "shortcut": False, "split_cls": False, "aggregate": "none"}
    assert DhvtParts(daff=False).feed_forward_options() == off
    assert DhvtParts(daff=False, aggregate="all").feed_forward_options() == {**off, "aggregate": "all"}
