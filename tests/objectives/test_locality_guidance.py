"""Locality guidance: what is compared, who learns, and what the guide may know."""

import json

import pytest
import timm
import torch
import torch.nn.functional as F

import paucal
from contracts import toys
from paucal.backbones import BackboneSpec, FeatureBackbone
from paucal.losses import guidance_loss
from paucal.methods.training import check_used
from paucal.methods.training_settings import TrainSettings
from paucal.objectives import LocalityGuidance, Supervised
from paucal.types import Batch, FeatureRequest, Progress, UserError

PROGRESS = Progress(0, 10, 5)


def guided(**options) -> tuple[Supervised, LocalityGuidance]:
    torch.manual_seed(0)
    guide = FeatureBackbone(timm.create_model("resnet18_cifar", num_classes=10, channels=(8, 12, 16, 20)), (16, 16))
    arguments = {"embed_dim": 32, "depth": 4, "num_heads": 2}
    backbone = BackboneSpec("vit_tiny_cifar_patch4", 10, image_size=(16, 16), arguments=arguments).build()
    term = LocalityGuidance(guide, [32] * 4, **options)
    return Supervised(backbone, {"locality": term}), term


def batch() -> Batch:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return Batch(torch.arange(4), [images], torch.tensor([0, 1, 2, 0]))


def test_loss__is_the_mean_square_on_the_finer_grid():
    cells, guide = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 2, 3)
    expected = F.interpolate(guide, (4, 6), mode="bilinear")
    assert guidance_loss(cells, guide).item() == pytest.approx(float(((cells - expected) ** 2).mean()))
    assert guidance_loss(guide, guide) == 0


def test_term__compares_evenly_spread_blocks_with_the_last_stages():
    objective, term = guided()
    assert term.blocks == [0, 1, 3]
    terms = objective(batch(), PROGRESS)
    grids = objective.backbone(batch().views[0], FeatureRequest("blocks")).grids
    stages = term.guide.model.forward_intermediates(batch().views[0])[1][-3:]
    assert [stage.shape[1] for stage in stages] == [12, 16, 20]
    levels = zip(term.blocks, term.projections, stages, strict=True)
    expected = sum(guidance_loss(head(grids[block]), stage) for block, head, stage in levels)
    torch.testing.assert_close(terms.values["locality"], expected)
    assert terms.weights["locality"] == 2.5


def test_term__weighs_as_much_whatever_the_scale_of_the_guides_features():
    objective, term = guided()
    for projection in term.projections:
        torch.nn.init.zeros_(projection.weight)
        torch.nn.init.zeros_(projection.bias)

    def seen(scale: float) -> tuple[float, list[float]]:
        term.set_renormalisation([scale] * 3, [0.0] * 3)
        stages = term.guide(batch().views[0] * scale, FeatureRequest("stages")).grids[-3:]
        return objective(batch(), PROGRESS).values["locality"].item(), [float(x.square().mean()) for x in stages]

    small, energies = seen(0.1)
    assert max(energies) < 1
    assert small < sum(energies)
    (large, energies), (larger, _) = seen(1e4), seen(1e5)
    assert min(energies) > 1
    assert large == pytest.approx(larger, rel=0.01)
    assert 1 < large <= 3


def test_guide__never_learns_and_stays_in_evaluation_mode(tmp_path):
    objective, term = guided()
    before = {name: value.clone() for name, value in term.guide.state_dict().items()}
    first = term.projections[0].weight.clone()
    objective.train()
    assert not any(module.training for module in term.guide.modules())
    objective(batch(), PROGRESS).total.backward()
    assert all(p.grad is None for p in term.guide.parameters())
    assert objective.backbone.model.blocks[0].mlp.fc1.weight.grad.any()
    toys.train(objective, tmp_path, epochs=1, average=None)
    assert all(torch.equal(before[name], value) for name, value in term.guide.state_dict().items())
    assert not torch.equal(first, term.projections[0].weight)
    assert not any(name.startswith("guide") for name in objective.deployable().state_dict())


def test_images__reach_the_guide_as_it_was_trained_to_see_them():
    objective, term = guided()
    plain = objective(batch(), PROGRESS).values["locality"]
    # The run normalises by mean 0.5 and deviation 0.2, the guide by 0.4 and 0.1.
    term.set_renormalisation([2.0] * 3, [1.0] * 3)
    shown, moved = batch(), batch()
    moved.views[0] = (shown.views[0] * 0.2 + 0.5 - 0.4) / 0.1
    with torch.no_grad():
        expected = term.guide(moved.views[0], FeatureRequest("stages")).grids[-1]
        seen = term.guide(shown.views[0] * term.scale + term.shift, FeatureRequest("stages")).grids[-1]
    torch.testing.assert_close(seen, expected)
    assert objective(shown, PROGRESS).values["locality"] != plain


def test_blocks__too_few_for_the_guide_are_refused():
    with pytest.raises(ValueError, match="each of the guide's 3 stages, but the backbone has only 2"):
        LocalityGuidance(guided()[1].guide, [32, 32])


@pytest.mark.slow
def test_run__is_guided_by_a_run_of_the_same_split_and_no_other(tmp_path):
    small = {"epochs": 1, "method": "supervised", "output": str(tmp_path / "cnn"), "img_size": [16]}
    cnn = {"model": "resnet18_cifar", "model_args": ["channels=[8,12,16,20]"]}
    paucal.train("digits", **small, **cnn)
    vit = {**small, "model": "vit_tiny_cifar_patch4", "model_args": ["embed_dim=32", "depth=3", "num_heads=2"]}
    vit |= {"add": ["locality"], "guide": str(tmp_path / "cnn")}
    paucal.train("digits", **{**vit, "output": str(tmp_path / "guided")})
    assert json.loads((tmp_path / "guided" / "summary.json").read_text())
    assert "train_locality" in (tmp_path / "guided" / "metrics.csv").read_text()
    with pytest.raises(UserError, match=r"was trained on \d+ of the validation and test images of this run"):
        paucal.train("digits", **{**vit, "output": str(tmp_path / "other"), "seed": 1})
    with pytest.raises(UserError, match="--add locality needs a guide"):
        paucal.train("digits", **{**vit, "output": str(tmp_path / "none"), "guide": None})


def test_settings__without_effect_are_refused():
    with pytest.raises(UserError, match="--guide has no effect without --add locality"):
        check_used(TrainSettings(guide="runs/1"), {"guide": "flag"})
    with pytest.raises(UserError, match="--attention-init is for runs from random weights"):
        check_used(TrainSettings(attention_init="mimetic", init="runs/1"), {"attention_init": "flag"})
