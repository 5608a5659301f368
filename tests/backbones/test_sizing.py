"""Arguments chosen from the image size."""

from datetime import date

import pytest
import timm
import torch

from paucal.backbones.sizing import best_window, fit_to_image_size, fit_to_image_sizes, patch_sides
from paucal.types import UserError

VIT, SWIN, CONVNEXT, RESNET, PVT = (
    "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "convnext_atto",
    "resnet18",
    "pvt_v2_b0",
)
SWIN_ARGUMENTS = {"depths": [1, 1, 1, 1], "embed_dim": 24}
REDUCED = {
    VIT: {"depth": 1},
    SWIN: SWIN_ARGUMENTS,
    CONVNEXT: {"depths": [1, 1, 1, 1]},
    PVT: {"depths": [1, 1, 1, 1]},
    "xcit_nano_12_p16_224": {"depth": 1},
    "deit_tiny_distilled_patch16_224": {"depth": 1},
}

# name, side, arguments chosen (img_size apart), whether img_size is passed, side of the last grid
TABLE = [
    (VIT, 16, {"patch_size": 2}, True, 8),
    (VIT, 32, {"patch_size": 4}, True, 8),
    (VIT, 64, {"patch_size": 8}, True, 8),
    (VIT, 96, {"patch_size": 12}, True, 8),
    (VIT, 128, {}, True, 8),
    (VIT, 224, {}, False, 14),
    (SWIN, 16, {"patch_size": 1, "window_size": 8}, True, 2),
    (SWIN, 32, {"patch_size": 1, "window_size": 8}, True, 4),
    (SWIN, 64, {"patch_size": 2, "window_size": 8}, True, 4),
    (SWIN, 96, {"patch_size": 2, "window_size": 6}, True, 6),
    (SWIN, 128, {"window_size": 8}, True, 4),
    (SWIN, 224, {}, False, 7),
    (SWIN, 256, {}, True, 8),
    (CONVNEXT, 16, {"patch_size": 1}, False, 2),
    (CONVNEXT, 32, {"patch_size": 1}, False, 4),
    (CONVNEXT, 64, {"output_stride": 16}, False, 4),
    (CONVNEXT, 96, {"output_stride": 16}, False, 6),
    (CONVNEXT, 128, {}, False, 4),
    (CONVNEXT, 224, {}, False, 7),
    (RESNET, 16, {"output_stride": 8}, False, 2),
    (RESNET, 32, {"output_stride": 8}, False, 4),
    (RESNET, 64, {"output_stride": 16}, False, 4),
    (RESNET, 96, {"output_stride": 16}, False, 6),
    (RESNET, 128, {}, False, 4),
    (RESNET, 224, {}, False, 7),
    (PVT, 64, {}, False, 2),
    (PVT, 96, {}, False, 3),
    (PVT, 128, {}, False, 4),
    (PVT, 224, {}, False, 7),
    ("vit_mini", 16, {}, True, 4),
    ("vit_mini", 32, {}, False, 8),
    ("xcit_nano_12_p16_224", 64, {"patch_size": 8}, False, 8),
    ("deit_tiny_distilled_patch16_224", 28, {"patch_size": 4}, True, 7),
]


@pytest.mark.parametrize(("name", "side", "chosen", "resized", "grid"), TABLE)
def test_fit__chooses_exactly(name: str, side: int, chosen: dict, resized: bool, grid: int) -> None:
    given = REDUCED.get(name, {})
    sizing = fit_to_image_size(name, (side, side), given)
    assert sizing.arguments == {**({"img_size": (side, side)} if resized else {}), **chosen}
    assert sizing.grid == (grid, grid)
    assert (sizing.reason is not None) == bool(chosen)
    assert (sizing.warning is not None) == (grid < 4)


@pytest.mark.parametrize("name", [VIT, SWIN, CONVNEXT, RESNET])
def test_fit__builds_a_model_that_runs_at_the_size(name: str) -> None:
    given = REDUCED.get(name, {})
    sizing = fit_to_image_size(name, (32, 48), given)
    model = timm.create_model(name, num_classes=3, **given, **sizing.arguments).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 32, 48)).shape == (1, 3)
    assert min(sizing.grid) >= 4
    assert sizing.grid[1] * 2 == sizing.grid[0] * 3


@pytest.mark.parametrize(("name", "side"), [(VIT, 96), (SWIN, 96), (CONVNEXT, 16), (RESNET, 64)])
def test_fit__keeps_to_what_it_chose_when_asked_again(name: str, side: int) -> None:
    given = REDUCED.get(name, {})
    chosen = fit_to_image_size(name, (side, side), given)
    again = fit_to_image_size(name, (side, side), {**given, **chosen.arguments})
    assert set(again.arguments) <= {"img_size"}
    assert again.grid == chosen.grid


def test_fit__takes_patches_that_divide_the_images_but_not_the_models_own_size() -> None:
    given = {"depth": 1, "embed_dim": 32, "num_heads": 2, "stem_width": 8}
    chosen = fit_to_image_size("lvvit_t", (96, 96), given)
    assert (chosen.grid, chosen.arguments["patch_size"]) == ((8, 8), 12)  # of 224 pixels 12 is no divisor
    again = fit_to_image_size("lvvit_t", (96, 96), {**given, "patch_size": 12})
    assert (again.grid, again.arguments) == ((8, 8), {"img_size": (96, 96)})


def test_fit__says_why_and_what_to_do() -> None:
    sizing = fit_to_image_size(VIT, (32, 32))
    assert sizing.reason == (
        "For 32x32 pixels vit_tiny_patch16_224 is built with patch_size=4, which gives a last grid of 8x8."
    )
    assert fit_to_image_size(PVT, (64, 64)).warning == (
        "The last grid of pvt_v2_b0 is 2x2, smaller than 4x4, which is too few cells for losses on cells "
        "(dense localization, regions, token labels); "
        "use --img-size 128 or more, or --model vit_mini."
    )


def test_fit__leaves_the_users_own_arguments_alone() -> None:
    assert fit_to_image_size(VIT, (32, 32), {"patch_size": 8, "depth": 1}).arguments == {"img_size": (32, 32)}
    swin = fit_to_image_size(SWIN, (64, 64), {**SWIN_ARGUMENTS, "window_size": 4})
    assert swin.arguments == {"img_size": (64, 64), "patch_size": 2}
    swin = fit_to_image_size(SWIN, (64, 64), {**SWIN_ARGUMENTS, "patch_size": 4})
    assert swin.arguments == {"img_size": (64, 64), "window_size": 8}
    assert fit_to_image_size(RESNET, (64, 64), {"output_stride": 8}).arguments == {}


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        (VIT, (250, 250), "which is impossible for 250x250 pixels; use 240x240 or 256x256"),
        (VIT, (31, 31), "use 24x24 or 32x32"),
        (SWIN, (250, 250), "use 248x248 or 252x252"),
        (
            PVT,
            (32, 32),
            "is a single cell; use --img-size 128 or more, or --model vit_mini",
        ),
        (PVT, (16, 16), "for 16x16 pixels the last grid of pvt_v2_b0 is a single cell; use --img-size 128"),
        ("pit_ti_224", (16, 16), "for 16x16 pixels the last grid of pit_ti_224 is a single cell"),
        ("crossvit_tiny_240", (64, 64), "use its default size 240x240"),
        ("swin_tinny_patch4_window7_224", (224, 224), "did you mean swin_tiny_patch4_window7_224"),
    ],
)
def test_fit__refuses_in_one_sentence(name: str, size: tuple[int, int], says: str) -> None:
    with pytest.raises(UserError) as caught:
        fit_to_image_size(name, size, REDUCED.get(name))
    assert says in str(caught.value)


def test_fit__leaves_the_random_generator_alone() -> None:
    before = torch.get_rng_state()
    fit_to_image_size(RESNET, (32, 32))
    assert torch.equal(torch.get_rng_state(), before)


def test_best_window__pads_least() -> None:
    # 128 pixels, patch 4: grids 32, 16, 8, 4. Windows of 7 pad three of them, windows of 8 none.
    assert best_window((128, 128), 4, 4) == 8
    # 80 pixels, patch 2: grids 40, 20, 10, 5; only 5 divides all.
    assert best_window((80, 80), 2, 4) == 5
    # 224 pixels: 7 divides all and comes first.
    assert best_window((224, 224), 4, 4) == 7


def test_equal_patches__divide_both_sides() -> None:
    assert patch_sides((32, 48)) == [4, 2]
    assert patch_sides((100, 100)) == [10]
    assert patch_sides((97, 97)) == []


def test_fit_sizes__adds_only_what_is_needed() -> None:
    sizes = [(64, 64), (32, 32)]
    assert fit_to_image_sizes(RESNET, sizes, {}) == {}
    arguments = {"img_size": (64, 64), "patch_size": 8, "depth": 1}
    assert fit_to_image_sizes(VIT, sizes, arguments) == {**arguments, "dynamic_img_size": True}


@pytest.mark.parametrize(("name", "sizes"), [("cait_xxs24_224", [(224, 224), (96, 96)]), (VIT, [(224, 224), (90, 90)])])
def test_fit_sizes__refuses_a_model_bound_to_one_size(name: str, sizes: list[tuple[int, int]]) -> None:
    with pytest.raises(UserError, match=f"{name} does not run at all of the sizes 224x224 and 9"):
        fit_to_image_sizes(name, sizes, {})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"checkpoint_path": "weights.pth"}, "'checkpoint_path' of vit_mini does not describe an architecture"),
        ({"pretrained": True}, "'pretrained' of vit_mini does not describe an architecture"),
        ({"depth": date(2020, 1, 1)}, "arguments of vit_mini must be of JSON types"),
    ],
)
def test_fit__builds_nothing_from_arguments_that_read_files(arguments: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        fit_to_image_size("vit_mini", (16, 16), arguments)
