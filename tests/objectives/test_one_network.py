"""VISReg and DIET: what they hand to their losses, what gets gradient, and what stays as it is."""

import pytest
import torch

from contracts import toys
from paucal.backbones import BackboneSpec
from paucal.losses.diet import diet_loss
from paucal.losses.lejepa import unit_directions
from paucal.losses.visreg import visreg_loss
from paucal.objectives.base import seed_of_step
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.one_network import Diet, LeJepa, LeJepaOptions, VisReg
from paucal.types import Batch, Crops, Progress

NOW = Progress(0, 10, 5)
VIEWS = [Crops(2, toys.SIZE), Crops(2, 8)]


def batch(n: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(0)
    sides = (toys.SIZE, toys.SIZE, 8, 8)
    return Batch(torch.arange(n) + 3, [torch.rand(n, 3, side, side, generator=generator) for side in sides])


def test_seed_of_step__depends_on_all_bits_and_suits_a_generator():
    assert seed_of_step(0, 0) != seed_of_step(2**32, 0)
    assert seed_of_step(2**62, 9) < 2**63


def test_visreg__hands_the_projected_views_to_its_loss():
    objective = toys.visreg().eval()
    assert isinstance(objective, VisReg)
    terms = objective(batch(), NOW)
    views = [objective.projector(objective.backbone(view).pooled) for view in batch().views]
    along = unit_directions(8, 32, torch.Generator().manual_seed(seed_of_step(0, 0)))
    expected = visreg_loss(views, along)
    torch.testing.assert_close(terms.values["prediction"], expected.prediction)
    torch.testing.assert_close(terms.values["shape"], expected.regularisation)
    torch.testing.assert_close(terms.total, expected.total)


def test_diet__names_the_image_of_every_view():
    objective = toys.diet().eval()
    assert isinstance(objective, Diet)
    terms = objective(batch(), NOW)
    logits = [objective.classifier(objective.backbone(view).pooled) for view in batch().views]
    torch.testing.assert_close(terms.total, diet_loss(logits, torch.arange(6) + 3))
    few = Diet(toys.spec(0), VIEWS, images=4).eval()  # image 7 shares the class of image 3
    values = few(Batch(torch.tensor([3, 7]), [view[:2] for view in batch().views]), NOW)
    assert torch.isfinite(values.total)


@pytest.mark.parametrize("make", [toys.visreg, toys.diet])
def test_every_weight__learns(make):
    objective = make()
    objective(batch(), NOW).total.backward()
    assert [name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None] == []
    assert objective.deployable() is objective.backbones()[0].model


@pytest.mark.parametrize(
    "build",
    [
        lambda spec, tuning: Diet(spec, VIEWS, 20, tuning=tuning),
        lambda spec, tuning: LeJepa(spec, VIEWS, LeJepaOptions(hidden_dim=16), tuning=tuning),
        lambda spec, tuning: VisReg(spec, VIEWS, LeJepaOptions(hidden_dim=16), tuning=tuning),
    ],
    ids=["diet", "lejepa", "visreg"],
)
def test_frozen_stages__and_running_statistics_stay_as_they_are(build):
    spec = BackboneSpec("resnet10t", 0, image_size=(toys.SIZE * 2, toys.SIZE * 2))
    objective = build(spec, FineTuning(freeze=2, eval_mode=True)).train()
    model = objective.deployable()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in objective.parameters() if p.requires_grad], 0.1)
    objective(batch(), NOW).total.backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert any(name.startswith("layer4") for name in changed)
    assert not any(name.startswith(("conv1", "layer1", "layer2")) or "running" in name for name in changed)
