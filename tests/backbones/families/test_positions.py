"""Position tables are resampled with one filter per family, whatever the way they come."""

import pytest
import timm
import torch
from torch.nn import functional

from paucal.backbones.families.common.positions import uses_antialiasing
from paucal.backbones.weights.adapt import fit_to_model, position_grid

SMALL = {"embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
FAMILIES = {
    "lvvit_t": {**SMALL, "stem_width": 8},
    "dhvt_tiny_domain_patch16": {**SMALL, "abs_pos": True},
    "t2t_vit_7": SMALL,
    "esvit_deit_tiny_patch16_224": SMALL,
    "drloc_vit_base_patch16_224": SMALL,
    "vit_tiny_patch16_224": SMALL,
}


def build(name, size):
    return timm.create_model(name, img_size=size, **FAMILIES[name])


def resized(table, before, after, antialias):
    cells = table[:, 1:].reshape(1, *before, -1).permute(0, 3, 1, 2)
    cells = functional.interpolate(cells, after, mode="bicubic", antialias=antialias)
    return torch.cat((table[:, :1], cells.flatten(2).transpose(1, 2)), 1)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("before", "after"), [((64, 64), (96, 64)), ((64, 96), (96, 64)), ((96, 64), (64, 64))])
def test_table__of_a_checkpoint_is_resampled_in_the_familys_way_from_any_grid(name, before, after):
    source, target = build(name, before), build(name, after)
    table = torch.randn(source.pos_embed.shape, generator=torch.Generator().manual_seed(0))
    old, new = position_grid(source), position_grid(target)
    state = {**source.state_dict(), "pos_embed": table}
    smooth = name.startswith(("vit", "drloc"))  # timm's way; the papers' programs have their own
    assert uses_antialiasing(target) == smooth
    expected = resized(table, old, new, smooth)
    for grid in {old, old if old[0] != old[1] else None}:  # of square grids also where nobody says so
        found = fit_to_model(target, state, grid).state["pos_embed"]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (resized(table, old, new, not smooth) - expected).abs().max() > 0.1


@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith("t2t")])
def test_table__is_the_same_after_a_change_of_size_in_place(name):
    source, target = build(name, (64, 96)), build(name, (96, 64))
    torch.nn.init.normal_(source.pos_embed)
    fitted = fit_to_model(target, source.state_dict(), position_grid(source)).state["pos_embed"]
    source.set_input_size((96, 64))
    torch.testing.assert_close(source.pos_embed.detach(), fitted)
