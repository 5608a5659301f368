"""The objective of LeJEPA: what it hands to its loss, what gets gradient, and what is random in it."""

import pytest
import torch

from contracts import toys
from paucal.backbones import BackboneSpec
from paucal.losses.lejepa import lejepa_loss, unit_directions
from paucal.objectives.base import seed_of_step
from paucal.objectives.one_network import LeJepa, LeJepaOptions
from paucal.types import Batch, Crops, Progress

NOW = Progress(0, 10, 5)


def batch(n: int = 6, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    sides = (toys.SIZE, toys.SIZE, 8, 8)
    return Batch(torch.arange(n), [torch.rand(n, 3, side, side, generator=generator) for side in sides])


def test_losses__are_those_of_each_views_own_pass():
    """One pass for each resolution gives what a pass for each view would."""
    objective = toys.lejepa().eval()
    assert isinstance(objective, LeJepa)
    terms = objective(batch(), NOW)
    views = [objective.projector(objective.backbone(view).pooled) for view in batch().views]
    along = unit_directions(8, 32, torch.Generator().manual_seed(seed_of_step(0, 0)))
    expected = lejepa_loss(views, along, global_views=2)
    torch.testing.assert_close(terms.values["prediction"], expected.prediction)
    torch.testing.assert_close(terms.values["sigreg"], expected.sigreg)
    torch.testing.assert_close(terms.total, expected.total)


def test_every_weight__learns_from_every_view():
    objective = toys.lejepa()
    objective(batch(), NOW).total.backward()
    assert [name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None] == []
    views = [view.requires_grad_() for view in batch().views]
    objective(Batch(torch.arange(6), views), NOW).total.backward()
    assert all(view.grad is not None and view.grad.abs().sum() > 0 for view in views)


def test_directions__are_new_in_every_pass_and_follow_the_seed():
    objective = toys.lejepa().eval()
    values = {step: objective(batch(), Progress(step, 10, 5, step)).values["sigreg"].item() for step in (0, 1)}
    assert values[0] != values[1]
    again = objective(batch(), Progress(7, 10, 5, 1)).values["sigreg"].item()  # keyed by the pass alone
    assert again == values[1]


def test_deployable__is_the_backbone_without_its_projector():
    objective = toys.lejepa()
    assert objective.deployable() is objective.backbones()[0].model
    assert not any("projector" in name for name in objective.deployable().state_dict())


def test_diagnostics__look_at_the_first_view_now_and_then():
    objective = toys.lejepa().train()
    objective(batch(), NOW)
    assert set(objective.diagnostics()) == {"feature_spread", "effective_rank", "feature_norm"}
    objective(batch(), Progress(1, 10, 5, 1))
    assert objective.diagnostics() == {}


def test_one_view__is_refused():
    spec = BackboneSpec("vit_mini", 0, image_size=(16, 16))
    with pytest.raises(ValueError, match="needs at least 2, got 1"):
        LeJepa(spec, [Crops(1, 16)], LeJepaOptions())
