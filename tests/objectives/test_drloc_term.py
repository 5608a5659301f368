"""DrLoc as a term: pairs, ranks, gradients, schedules, presets and weights."""

import pytest
import torch
from torch import nn

from paucal.backbones import BackboneSpec
from paucal.losses import drloc_chance_level
from paucal.objectives import Supervised, drloc
from paucal.objectives.drloc import PRESETS, DrLoc, DrLocOptions, default_weight
from paucal.types import Batch, FeatureRequest, Features, Progress, UserError
from vectors.drloc_inputs import VECTORS


def at(step=0, *, micro_step=0, steps_per_epoch=1):
    return Progress(step, total_steps=1000, steps_per_epoch=steps_per_epoch, micro_step=micro_step)


def features(*grids):
    return Features(list(grids), grids[-1].mean((2, 3)), None)


def batch_of(grid):
    return Batch(torch.arange(len(grid)), [])


def loss_of(term, *grids, micro_step=0):
    return term(features(*grids), batch_of(grids[0]), at(micro_step=micro_step))


def small_term(**options):
    torch.manual_seed(0)
    return DrLoc([6], [(4, 5)], DrLocOptions(hidden=16, n_pairs=12, **options))


def grid_of(batch, *size, channels=6):
    return torch.rand(batch, channels, *size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("row", VECTORS["lambda_schedule"]["rows"])
def test_weight__ramp_matches_the_reference(row):
    weight, warmup, horizon, epoch, value = row
    term = small_term(weight=weight, schedule="ramp", warmup_epochs=warmup, horizon_epochs=horizon)
    assert term.weight(at(epoch * 7 + 3, steps_per_epoch=7)) == pytest.approx(value, rel=1e-9)


def test_weight__ramp_without_warm_up_and_past_its_end():
    term = small_term(weight=0.4, schedule="ramp", warmup_epochs=0, horizon_epochs=10)
    assert [term.weight(at(e)) for e in (0, 5, 10, 11)] == pytest.approx([0.4, 0.2, 0.0, 0.0])


def test_weight__constant_by_default():
    assert {small_term(weight=0.3).weight(at(e)) for e in (0, 1, 500)} == {0.3}


@pytest.mark.parametrize("mode", ["l1", "signed", "ce", "reg"])
def test_drloc__grid_and_head_get_gradient_and_everything_is_used(mode):
    term, grid = small_term(mode=mode), grid_of(2, 4, 5).requires_grad_()
    loss = loss_of(term, grid)
    assert loss.shape == ()
    loss.backward()
    assert grid.grad is not None
    assert grid.grad.abs().sum() > 0
    for parameter in term.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("n_pairs", [12, None])
def test_drloc__is_a_function_of_seed_and_micro_step(n_pairs):
    grid = grid_of(3, 4, 5)
    torch.manual_seed(0)
    terms = [DrLoc([6], [(4, 5)], DrLocOptions(hidden=16, n_pairs=n_pairs, seed=seed)) for seed in (0, 0, 1)]
    for term in terms[1:]:
        term.load_state_dict(terms[0].state_dict())
    torch.rand(100)
    state = torch.get_rng_state()
    first, again, other_seed = (loss_of(term, grid).item() for term in terms)
    assert first == again != other_seed
    steps = [loss_of(terms[0], grid, micro_step=i).item() for i in range(20)]
    assert steps[0] == first
    assert len(set(steps)) == 20
    assert torch.equal(torch.get_rng_state(), state)


def test_drloc__steps_and_seeds_do_not_share_streams():
    def pairs_at(seed, micro_step):
        term = small_term(seed=seed)
        seen = []
        term.heads[0].register_forward_pre_hook(lambda _, args: seen.append(args[1]))
        loss_of(term, grid_of(1, 4, 5), micro_step=micro_step)
        return tuple(seen[0].flatten().tolist())

    assert len({pairs_at(seed, step) for seed in range(4) for step in range(4)}) == 16


@pytest.mark.parametrize("n_pairs", [12, None])
@pytest.mark.parametrize("mode", ["l1", "ce"])
def test_drloc__three_processes_equal_one_on_the_joint_batch(monkeypatch, n_pairs, mode):
    torch.manual_seed(0)
    term = DrLoc([6], [(4, 5)], DrLocOptions(hidden=16, n_pairs=n_pairs, mode=mode))
    joint = grid_of(6, 4, 5)
    whole = loss_of(term, joint, micro_step=5)
    gradient = torch.autograd.grad(whole, list(term.parameters()))
    losses, gradients = [], []
    monkeypatch.setattr(drloc, "world_size", lambda: 3)
    for number, part in enumerate(joint.chunk(3)):
        monkeypatch.setattr(drloc, "rank", lambda number=number: number)
        losses.append(loss_of(term, part, micro_step=5))
        gradients.append(torch.autograd.grad(losses[-1], list(term.parameters())))
    assert losses[0].item() != pytest.approx(losses[1].item(), rel=1e-3)
    assert torch.stack(losses).mean().item() == pytest.approx(whole.item(), rel=1e-6)
    for one, *parts in zip(gradient, *gradients, strict=True):
        torch.testing.assert_close(torch.stack(parts).mean(0), one)


def test_drloc__several_grids_have_their_own_heads_and_are_summed():
    torch.manual_seed(0)
    dims, sizes = [4, 6], [(8, 8), (4, 4)]
    term = DrLoc(dims, sizes, DrLocOptions(hidden=16, levels="stages"))
    grids = [grid_of(2, *size, channels=dim) for dim, size in zip(dims, sizes, strict=True)]
    losses = []
    for silent in range(2):
        with torch.no_grad():
            saved = {k: v.clone() for k, v in term.heads[silent].state_dict().items()}
            term.heads[silent].last.weight.zero_()
            term.heads[silent].last.bias.fill_(float("nan"))
        assert loss_of(term, *grids).isnan()
        term.heads[silent].load_state_dict(saved)
        losses.append(loss_of(term, *grids).item())
    assert losses[0] == losses[1]
    assert term.chance_level() == pytest.approx(drloc_chance_level(8, 8) + drloc_chance_level(4, 4))


def test_drloc__of_a_zero_head_sums_the_levels():
    term = DrLoc([4, 6], [(8, 8), (4, 4)], DrLocOptions(hidden=16, levels="blocks", n_pairs=5000))
    for head in term.heads:
        assert isinstance(head, nn.Module)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
    loss = loss_of(term, grid_of(4, 8, 8, channels=4), grid_of(4, 4, 4)).item()
    assert loss == pytest.approx((64 - 1) / (3 * 64) + (16 - 1) / (3 * 16), abs=0.01)  # E|offset| / k


def test_drloc__last_level_reads_the_last_grid():
    term = small_term()
    last = grid_of(2, 4, 5)
    assert loss_of(term, last).item() == loss_of(term, torch.rand(2, 99, 9, 9), last).item()


@pytest.mark.parametrize(
    ("pool", "levels", "side"),
    [
        ("paper", "last", 7),
        ("reference", "last", 7),
        ("none", "last", 14),
        (5, "last", 5),
        ("paper", "stages", 14),
    ],
)
def test_drloc__pools_before_it_draws(pool, levels, side):
    term = DrLoc([6], [(14, 14)], DrLocOptions(hidden=16, n_pairs=500, pool=pool, levels=levels))
    seen = []
    term.heads[0].register_forward_pre_hook(lambda _, args: seen.append(args))
    loss_of(term, grid_of(1, 14, 14))
    grid, pairs = seen[0]
    assert term.sizes == [(side, side)]
    assert grid.shape[2:] == (side, side)
    assert pairs.amax() == side - 1


def test_drloc__classes_belong_to_one_grid_size_offsets_do_not():
    for mode in ("l1", "signed"):
        assert loss_of(small_term(mode=mode), grid_of(2, 6, 9)).isfinite()
    for mode in ("ce", "reg"):
        with pytest.raises(ValueError, match=r"a \(4, 5\) grid, got a \(6, 9\) grid"):
            loss_of(small_term(mode=mode), grid_of(2, 6, 9))


def test_drloc__refuses_a_single_cell_and_misfitting_levels():
    with pytest.raises(UserError, match="1 x 1"):
        DrLoc([6], [(1, 1)])
    with pytest.raises(UserError, match="less pooling"):
        DrLoc([6], [(14, 14)], DrLocOptions(pool=1))
    with pytest.raises(ValueError, match="2 dims and 2 grids"):
        DrLoc([6, 6], [(7, 7), (7, 7)])
    with pytest.raises(ValueError, match="a head for each of 1 grids, got 2 grids"):
        loss_of(DrLoc([6], [(4, 4)], DrLocOptions(levels="stages")), grid_of(1, 4, 4), grid_of(1, 4, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["l1", "signed", "ce", "reg"])
def test_drloc__is_finite_under_autocast(dtype, mode):
    term, grid = small_term(mode=mode), grid_of(2, 4, 5).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        loss = loss_of(term, grid)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert grid.grad is not None
    assert grid.grad.isfinite().all()
    assert grid.grad.abs().sum() > 0


def test_drloc__falls_below_chance_only_where_the_embeddings_know_their_place():
    losses = []
    for grid in (torch.eye(16).view(1, 16, 4, 4), torch.ones(1, 16, 4, 4)):
        torch.manual_seed(0)
        term = DrLoc([16], [(4, 4)], DrLocOptions(hidden=64, n_pairs=500))
        optimizer = torch.optim.Adam(term.parameters(), lr=5e-3)
        for step in range(200):
            optimizer.zero_grad()
            loss = loss_of(term, grid, micro_step=step)
            loss.backward()
            optimizer.step()
        losses.append(loss.item() / term.chance_level())
    assert losses[0] < 0.2
    assert losses[1] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("preset", "name", "weight", "pool", "norm"),
    [
        ("paper", "swin_tiny_patch4_window7_224", 0.5, "paper", True),
        ("paper", "vit_small_patch16_224", 0.01, "paper", True),
        ("reference", "swin_tiny_patch4_window7_224", 0.5, "reference", False),
        ("reference", "vit_base_patch16_224", 0.01, "none", False),
        ("reference", "t2t_vit_14", 0.1, "reference", True),
        ("reference", "cvt_13", 0.1, "reference", False),
    ],
)
def test_presets__follow_the_backbone(preset, name, weight, pool, norm):
    term = DrLoc.from_preset(preset, [6], [(14, 14)], model_name=name, hidden=16)
    assert (term.options.weight, term.options.pool, term.request) == (
        weight,
        pool,
        FeatureRequest("last", norm),
    )


def test_presets__paper_is_the_default_and_overrides_win():
    assert PRESETS["paper"] == DrLocOptions()
    overrides = {"pool": "paper", "weight": 2.0}
    options = DrLoc.from_preset("reference", [6], [(7, 7)], model_name="vit_base_patch16_224", **overrides).options
    assert (options.pool, options.weight, options.scale) == ("paper", 2.0, "none")


def test_presets__reference_loss_is_seven_times_that_of_the_paper():
    losses = []
    for preset in ("paper", "reference"):
        term = DrLoc.from_preset(preset, [6], [(7, 7)], hidden=16)
        for parameter in term.parameters():
            nn.init.zeros_(parameter)
        losses.append(loss_of(term, grid_of(2, 7, 7)).item())
    assert losses[1] == pytest.approx(7 * losses[0], rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "cbr"}, "mode is 'cbr', but must be one of l1, signed, ce, reg"),
        ({"pool": 0}, "pool is 0"),
        ({"pool": True}, "pool is True"),
        ({"n_pairs": 0}, "n_pairs is 0, but must be at least 1"),
        ({"weight": -0.1}, "weight is -0.1"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"schedule": "ramp", "horizon_epochs": 20}, "horizon_epochs is 20"),
        ({"lamda": 1}, "no option 'lamda'"),
    ],
)
def test_options__refuse_what_makes_no_sense(options, message):
    with pytest.raises(UserError, match=message):
        DrLoc.from_preset("paper", [6], [(7, 7)], **options)


def test_presets__refuse_an_unknown_name():
    with pytest.raises(UserError, match="'published'; the presets are paper, reference"):
        DrLoc.from_preset("published", [6], [(7, 7)])


@pytest.mark.parametrize(
    ("name", "weight", "reason"),
    [
        ("swin_tiny_patch4_window7_224", 0.5, "Swin-T"),
        ("swinv2_tiny_window8_256", 0.5, "Swin-T"),
        ("esvit_swin_tiny_w14", 0.5, "Swin-T"),
        ("t2t_vit_14", 0.1, "T2T"),
        ("t2t_vit_t_14", 0.1, "T2T"),
        ("cvt_13", 0.1, "CvT"),
        ("drloc_cvt_13", 0.1, "CvT"),
        ("vit_base_patch16_224", 0.01, "ViT-B/16"),
        ("deit_small_patch16_224", 0.01, "ViT-B/16"),
        ("deit3_small_patch16_224", 0.01, "ViT-B/16"),
        ("resnet50", 0.1, "Table 2b"),
        ("tiny_vit_5m_224", 0.1, "Table 2b"),
        ("lvvit_s", 0.1, "Table 2b"),
        ("mobilevit_s", 0.1, "Table 2b"),
    ],
)
def test_default_weight__by_family(name, weight, reason):
    assert default_weight(name)[0] == weight
    assert reason in default_weight(name)[1]


def test_supervised__hands_the_chance_level_on():
    backbone = BackboneSpec("vit_mini", 3, image_size=(16, 16), arguments={"depth": 1}).build()
    term = DrLoc([backbone.dim], [backbone.grid], DrLocOptions(hidden=16))
    assert Supervised(backbone, {"place": term}).chance_levels() == {"place": pytest.approx(0.1875)}
    assert Supervised(backbone).chance_levels() == {}
