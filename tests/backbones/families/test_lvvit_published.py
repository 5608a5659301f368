"""LV-ViT against the published program: sizes, cost, recorded outputs and checkpoints."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.backbones.empty_models import meta_device
from paucal.backbones.families.lvvit import LvVit, checkpoint_filter_fn
from paucal.backbones.weights.start import StartWeights, start_from
from vectors import recorded

SIZES = [  # name, pixels, parameters, multiply-adds in G
    ("lvvit_vit_s", 224, 24_405_352, 5.183),
    ("lvvit_s_plain", 224, 25_766_824, 6.476),
    ("lvvit_t", 224, 8_534_720, 2.868),
    ("lvvit_s", 224, 26_151_824, 6.551),
    ("lvvit_m", 224, 55_830_544, 12.678),
    ("lvvit_l", 224, 150_021_968, 34.637),
    ("lvvit_s", 384, 26_297_744, 21.896),
]
LARGE_SIZES = [
    ("lvvit_vit_s", 384, 24_551_272, 17.874),
    ("lvvit_s_plain", 384, 25_912_744, 21.675),
    ("lvvit_t", 288, 8_565_440, 4.975),
    ("lvvit_t", 384, 8_625_920, 9.675),
    ("lvvit_t", 448, 8_675_840, 14.106),
    ("lvvit_t", 512, 8_733_440, 19.837),
    ("lvvit_s", 288, 26_200_976, 11.324),
    ("lvvit_s", 448, 26_377_616, 31.799),
    ("lvvit_s", 512, 26_469_776, 44.545),
    ("lvvit_m", 288, 55_896_080, 21.772),
    ("lvvit_m", 384, 56_025_104, 41.638),
    ("lvvit_m", 448, 56_131_600, 59.994),
    ("lvvit_m", 512, 56_254_480, 83.377),
    ("lvvit_l", 288, 150_120_272, 58.694),
    ("lvvit_l", 384, 150_313_808, 109.584),
    ("lvvit_l", 448, 150_473_552, 155.116),
    ("lvvit_l", 512, 150_657_872, 211.617),
]


@pytest.mark.parametrize(
    ("name", "pixels", "parameters", "cost"),
    [*SIZES, *(pytest.param(*size, marks=pytest.mark.slow) for size in LARGE_SIZES)],
)
def test_variants__have_the_published_parameters_and_cost(name: str, pixels: int, parameters: int, cost: float) -> None:
    with meta_device(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = timm.create_model(name, img_size=pixels).eval()
        model(torch.zeros(1, 3, pixels, pixels))
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert counter.get_total_flops() / 2e9 == pytest.approx(cost, rel=5e-4)


def test_variants__differ_as_published() -> None:
    with meta_device():
        models = {name: timm.create_model(name) for name, pixels, *_ in SIZES if pixels == 224}
    divisors = {name: 1 / model.blocks[0].branch_scale for name, model in models.items()}
    assert divisors["lvvit_t"] == divisors["lvvit_vit_s"] == 1
    assert divisors["lvvit_s"] == divisors["lvvit_s_plain"] == divisors["lvvit_m"] == 2
    assert divisors["lvvit_l"] == pytest.approx(3)
    crops = {name: model.default_cfg["crop_pct"] for name, model in models.items()}
    assert crops == {name: 1.0 if name in ("lvvit_m", "lvvit_l") else 0.9 for name in models}
    classifiers = {name: model.default_cfg["classifier"] for name, model in models.items()}
    assert classifiers["lvvit_t"] == ("head", "aux_head")
    assert classifiers["lvvit_s_plain"] == "head"


@pytest.mark.parametrize("rule", ["mix", "sine"])
@pytest.mark.parametrize(
    "name", ["lvvit_t", *(pytest.param(f"lvvit_{one}", marks=pytest.mark.slow) for one in ("s", "s_384", "m", "l"))]
)
def test_published_weights__give_the_recorded_outputs(name: str, rule: str) -> None:
    record = recorded.load(name)
    run = next(run for run in record["runs"] if run["fill"] == rule)
    # What was loaded at 384 pixels is the state dict of 224, sent through the published loader.
    stored = recorded.load(record["source"]["function_or_config"])
    model = timm.create_model(record["source"]["function_or_config"], img_size=record["settings"]["img_size"]).eval()
    tree = {"state_dict": {f"module.{key}": value for key, value in recorded.filled_state(stored, rule).items()}}
    report = start_from(model, StartWeights(tree, "the recorded state"), head="keep")
    assert report.share == 1
    assert not report.unused
    assert not report.fresh
    assert list(report.adapted) == (["pos_embed"] if "384" in name else [])
    with torch.no_grad():
        tokens = model.forward_features(recorded.images(run))
        class_logits, token_logits = model.dense_logits(tokens)
        recorded.require_outputs(model.forward_head(tokens), run)
        recorded.require_outputs(class_logits, run, "class_logits")
        recorded.require_grid(tokens[:, 1:], run, "post_norm")
        recorded.require_grid(token_logits, run, "aux_logits")
        if "384" in name:
            recorded.require_grid(model.pos_embed, run, "pos_embed")


def test_position_table__of_the_384_model_is_resampled_as_the_published_loader_does() -> None:
    run = recorded.load("lvvit_s_384")["runs"][0]
    stored = recorded.filled_state(recorded.load("lvvit_s"))
    with meta_device():
        model = timm.create_model("lvvit_s", img_size=384)
    recorded.require_grid(checkpoint_filter_fn(stored, model)["pos_embed"], run, "pos_embed")


def test_checkpoint_filter__leaves_what_fits_or_is_foreign() -> None:
    model = LvVit(img_size=(32, 64), embed_dim=12, depth=1, num_heads=3, num_classes=2, stem_width=4)
    own = model.state_dict()
    assert all(value is own[name] for name, value in checkpoint_filter_fn(own, model).items())
    foreign = [torch.zeros(1, 7, 12), torch.zeros(1, 5, 8), torch.zeros(3), torch.zeros(1, 1, 12)]
    for table in foreign:
        assert checkpoint_filter_fn({"pos_embed": table}, model)["pos_embed"] is table
    assert checkpoint_filter_fn({}, model) == {}


def test_start__takes_other_class_counts_only_below_both_classifiers() -> None:
    settings = {"img_size": 32, "embed_dim": 12, "depth": 1, "num_heads": 3, "stem_width": 4}
    source, target = LvVit(num_classes=2, **settings), LvVit(num_classes=3, **settings)
    before = {name: value.clone() for name, value in target.state_dict().items() if "head" in name}
    report = start_from(target, StartWeights({"state_dict": source.state_dict()}, "a file"))
    assert report.share == 1
    assert report.classifier == "fresh, since the loaded weights have 2 classes and this run 3"
    assert all(torch.equal(target.state_dict()[name], value) for name, value in before.items())


def test_start__without_the_classifier_of_tokens_keeps_that_of_the_image() -> None:
    settings = {"img_size": 32, "embed_dim": 12, "depth": 1, "num_heads": 3, "stem_width": 4, "num_classes": 2}
    source, target = LvVit(**settings), LvVit(aux_head=False, **settings)
    report = start_from(target, StartWeights({"state_dict": source.state_dict()}, "a file"), head="keep")
    assert set(report.unused) == {"aux_head.weight", "aux_head.bias"}
    assert torch.equal(target.head.weight, source.head.weight)
