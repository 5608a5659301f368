"""The training method of segmentation."""

import pytest
import torch

from paucal.backbones import BackboneSpec
from paucal.losses import pixel_loss
from paucal.objectives.finetuning import BACKBONE, FineTuning
from paucal.tasks.segmentation.crops import MASK
from paucal.tasks.segmentation.network import build_segmentation_network
from paucal.tasks.segmentation.objective import PixelObjective
from paucal.types import Batch, Progress

PROGRESS = Progress(0, 10, 5)


def build_objective(**options) -> PixelObjective:
    torch.manual_seed(0)
    network = build_segmentation_network(BackboneSpec("test_resnet", 0, image_size=(64, 64)), 3, width=8, dropout=0.0)
    return PixelObjective(network, dropout=0.0, **options)


def batch(size: int = 64) -> Batch:
    generator = torch.Generator().manual_seed(1)
    mask = torch.randint(0, 3, (2, size, size), generator=generator).to(torch.uint8)
    mask[:, :9] = 255
    return Batch(torch.arange(2), [torch.randn(2, 3, size, size, generator=generator)], label_maps={MASK: mask})


def test_losses__are_those_of_the_two_heads():
    objective = build_objective(auxiliary=0.4).eval()
    images = batch()
    terms = objective(images, PROGRESS)
    assert objective.auxiliary is not None
    network, mask = objective.network, images.label_maps[MASK]
    with torch.no_grad():
        maps = network.maps(images.views[0])
        coarse = torch.nn.functional.interpolate(
            objective.auxiliary(maps[2]), (64, 64), mode="bilinear", align_corners=False
        )
        whole = network(images.views[0])
    assert float(terms.values["pixels"].detach()) == pytest.approx(float(pixel_loss(whole, mask)), rel=1e-5)
    assert float(terms.values["auxiliary"].detach()) == pytest.approx(float(pixel_loss(coarse, mask)), rel=1e-5)
    expected = terms.values["pixels"] + 0.4 * terms.values["auxiliary"]
    assert torch.allclose(terms.total, expected)


def test_without_an_auxiliary_head__there_is_one_loss_and_nothing_stays_behind():
    objective = build_objective(auxiliary=0.0)
    assert list(objective(batch(), PROGRESS).values) == ["pixels"]
    deployed = {id(p) for p in objective.deployable().parameters()}
    assert {id(p) for p in objective.parameters()} == deployed
    with_auxiliary = build_objective()
    assert {id(p) for p in with_auxiliary.parameters()} != {id(p) for p in with_auxiliary.deployable().parameters()}


def test_every_parameter_that_is_trained__gets_a_gradient():
    objective = build_objective()
    objective(batch(), PROGRESS).total.backward()
    silent = [name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None]
    assert silent == []


def test_rates__are_the_heads_own_and_a_share_of_it_for_the_backbone():
    objective = build_objective(backbone_lr=0.1)
    labels = {name: objective.parameter_group(name) for name, _ in objective.named_parameters()}
    of_backbone = {name for name in labels if ".backbone.model." in name}
    assert {labels[name] for name in of_backbone} == {BACKBONE}
    assert {labels[name] for name in labels.keys() - of_backbone} == {"main"}
    scales = objective.group_scales(PROGRESS)
    assert scales[BACKBONE].lr == 0.1
    assert "main" not in scales


def test_layer_decay__goes_with_the_backbones_own_rate():
    objective = build_objective(backbone_lr=0.5, tuning=FineTuning(layer_decay=0.5))
    plain = build_objective(tuning=FineTuning(layer_decay=0.5)).group_scales(PROGRESS)
    halved = objective.group_scales(PROGRESS)
    layers = [label for label in plain if label.startswith("layer")]
    assert len(layers) > 2
    assert all(halved[label].lr == pytest.approx(0.5 * plain[label].lr) for label in layers)
    assert len({plain[label].lr for label in layers}) == len(layers)
    labels = {objective.parameter_group(n) for n, _ in objective.named_parameters() if ".backbone.model." in n}
    assert labels <= set(objective.group_scales(PROGRESS))


def test_a_frozen_backbone__never_changes_and_keeps_its_statistics():
    objective = build_objective(tuning=FineTuning(freeze="backbone")).train()
    before = {name: value.clone() for name, value in objective.network.maps.backbone.state_dict().items()}
    objective(batch(), PROGRESS).total.backward()
    optimizer = torch.optim.SGD([p for p in objective.parameters() if p.grad is not None], lr=1.0)
    optimizer.step()
    after = objective.network.maps.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    head = objective.network.head.classify[-1].weight
    assert float(head.grad.abs().sum()) > 0


def test_one_crop__is_too_few_for_the_pooled_maps():
    objective = build_objective().train()
    images = batch()
    alone = Batch(images.ids[:1], [images.views[0][:1]], label_maps={MASK: images.label_maps[MASK][:1]})
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        objective(alone, PROGRESS)
    assert objective.data_request.smallest_batch == 2


def test_overfitting__two_crops_are_learnt_by_heart():
    objective = build_objective().train()
    images = batch()
    coarse = torch.nn.functional.interpolate(torch.randn(2, 1, 4, 4), scale_factor=16)[:, 0]
    images.label_maps[MASK] = (coarse > 0).to(torch.uint8)
    images.views[0][:, 0] = coarse
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        total = objective(images, PROGRESS).total
        total.backward()
        optimizer.step()
        losses.append(float(total.detach()))
    assert losses[-1] < 0.4 * losses[0]
