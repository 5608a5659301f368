"""Slower layers, frozen layers and the classifier first, in real training runs on digits."""

import copy

import pytest
import timm
import torch
from lightning.pytorch import Callback
from torch import nn

from contracts import toys
from contracts.test_objectives import StopAfter
from paucal.backbones import BackboneSpec
from paucal.backbones.empty_models import meta_device
from paucal.backbones.layers import classifier_parameters, first_stage_parameters, layer_lr_scales
from paucal.evaluation.predictions import predict_all
from paucal.objectives import Supervised
from paucal.objectives.finetuning import BackboneTuner, FineTuning
from paucal.training import Validation
from paucal.types import Batch, GroupScale, Progress, UserError


def objective(tuning: FineTuning | None, name: str = "vit_mini", **arguments) -> Supervised:
    """Normalises over the batch in its stem, so that statistics could drift."""
    torch.manual_seed(0)
    arguments = arguments or ({"depth": 2, "embed_dim": 32, "num_heads": 2} if name == "vit_mini" else {})
    backbone = BackboneSpec(name, 10, image_size=(toys.SIZE, toys.SIZE), arguments=arguments).build()
    return Supervised(backbone, tuning=tuning)


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(module.state_dict())


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


class Steps(Callback):
    """Weights, rates and decays of every step, and what the optimizer has not touched yet."""

    def __init__(self):
        self.states, self.rates, self.without_moments = [], [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        optimizer, groups = trainer.optimizers[0], {}
        for group in optimizer.param_groups:
            groups.setdefault(group["label"], []).append((group["lr"], group["weight_decay"], group["decayed"]))
        self.rates.append(groups)
        self.states.append(snapshot(pl_module.objective.backbone.model))
        known = {p for group in optimizer.param_groups for p in group["params"]}
        self.without_moments.append(known - set(optimizer.state))


def validation() -> Validation:
    """Judges the live model between epochs, which puts it in evaluation mode and back."""
    batches = []

    def validate(module, device):
        if not batches:
            images = torch.randn(8, 3, toys.SIZE, toys.SIZE, generator=torch.Generator().manual_seed(0))
            batches.append(toys_batch(images))
        logits = predict_all(module, batches, device).logits
        return {"val_top1": float(logits.std()), "val_loss": 0.0}

    return Validation(validate, score="val_top1", loss="val_loss")


def toys_batch(images: torch.Tensor) -> Batch:
    return Batch(torch.arange(len(images)), [images], torch.zeros(len(images), dtype=torch.long))


@pytest.mark.parametrize("name", ["vit_mini", "test_resnet", "test_efficientnet"])
def test_frozen_weights__leave_norms_biases_and_the_classifier_to_learn(name, tmp_path):
    tuned = objective(FineTuning(freeze="weights", eval_mode=True), name)
    model = tuned.backbone.model
    before, heads = snapshot(model), classifier_parameters(model)
    shapes = {n: p.ndim for n, p in model.named_parameters() if p.requires_grad and n not in heads}
    still = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert all(n.endswith("weight") or n.endswith("pos_embed") or n.endswith("cls_token") for n in still)
    assert [n for n in shapes if "norm" in n or "bn" in n]
    assert still
    toys.train(tuned, tmp_path, epochs=1, average=None, validation=validation())
    assert changed(before, model.state_dict()) == heads | set(shapes)  # and no running statistic


@pytest.mark.parametrize("name", ["vit_mini", "test_resnet"])
def test_frozen_backbone__stays_bit_for_bit_and_its_statistics_too(name, tmp_path):
    probe = objective(FineTuning(freeze="backbone"), name)
    model = probe.backbone.model
    before, heads = snapshot(model), classifier_parameters(model)
    assert [key for key in before if "running_mean" in key]
    assert {n for n, p in model.named_parameters() if p.requires_grad} == heads
    toys.train(probe, tmp_path, epochs=2, average=None, validation=validation())
    assert changed(before, model.state_dict()) == heads


def test_frozen_backbone__leaves_the_moving_average_bit_for_bit(tmp_path):
    probe = objective(FineTuning(freeze="backbone"))
    before, heads = snapshot(probe.backbone.model), classifier_parameters(probe.backbone.model)
    toys.train(probe, tmp_path, epochs=2, average=0.9)
    assert changed(before, torch.load(tmp_path / "deployed.pt", weights_only=True)) == heads


def test_without_freezing__everything_changes(tmp_path):
    free = objective(None)
    before = snapshot(free.backbone.model)
    toys.train(free, tmp_path, epochs=1, average=None)
    assert changed(before, free.backbone.model.state_dict()) == set(before)


@pytest.mark.parametrize("freeze", ["stem", 0, 1])
def test_frozen_stages__stay_and_the_others_change(freeze, tmp_path):
    part = objective(FineTuning(freeze=freeze))
    model = part.backbone.model
    before, frozen = snapshot(model), first_stage_parameters(model, 0 if freeze == "stem" else freeze)
    assert "patch_embed.backbone.0.conv.weight" in frozen
    assert ("blocks.0.norm1.weight" in frozen) == (freeze == 1)
    toys.train(part, tmp_path, epochs=1, average=None, validation=validation())
    after = changed(before, model.state_dict())
    parameters = {n for n, _ in model.named_parameters()}
    assert after == parameters - frozen  # and no buffer: all statistics lie in the stem


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
def test_evaluation_mode__trains_every_parameter_and_keeps_statistics(drop_path, tmp_path):
    torch.manual_seed(0)
    arguments = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    spec = BackboneSpec("dhvt_tiny_cifar_patch4", 10, image_size=(toys.SIZE, toys.SIZE), arguments=arguments)
    tuned = Supervised(spec.build(drop_path_rate=drop_path), tuning=FineTuning(eval_mode=True))
    model = tuned.backbone.model
    before, steps = snapshot(model), Steps()
    toys.train(tuned, tmp_path, epochs=2, average=None, validation=validation(), callbacks=[steps])
    assert [key for key in before if "running_mean" in key]
    assert changed(before, model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_evaluation_mode__gives_the_loss_of_the_deployed_model():
    tuned = objective(FineTuning(eval_mode=True), proj_drop_rate=0.5, depth=2, embed_dim=32, num_heads=2)
    batch, progress = toys_batch(torch.randn(8, 3, toys.SIZE, toys.SIZE)), Progress(0, 10, 5)
    losses = [tuned.train()(batch, progress).total.item() for _ in range(2)]
    assert losses[0] == losses[1]  # nothing is dropped
    logits = tuned.deployable().eval()(batch.views[0])
    assert losses[0] == pytest.approx(nn.functional.cross_entropy(logits, batch.labels).item(), rel=1e-5)
    free = objective(None, proj_drop_rate=0.5, depth=2, embed_dim=32, num_heads=2).train()
    assert free(batch, progress).total.item() != free(batch, progress).total.item()


def test_held_backbone__stays_for_its_epochs_and_changes_after(tmp_path):
    tuned, steps = objective(FineTuning(freeze_epochs=2)), Steps()
    model = tuned.backbone.model
    before, heads = snapshot(model), classifier_parameters(model)
    toys.train(tuned, tmp_path, epochs=4, average=None, callbacks=[steps], validation=validation())  # 4 steps an epoch
    assert not changed(before, steps.states[0])  # the schedule begins at 0
    for number in range(1, 8):
        assert changed(before, steps.states[number]) == heads, number
        assert len(steps.without_moments[number]) == len(list(model.parameters())) - len(heads)
    assert changed(before, steps.states[8]) == set(before)
    assert not steps.without_moments[8]
    # Over its first epoch the rate grows by quarters; the classifier follows the schedule all along.
    ratios = [r["backbone"][0][0] / max(r["main"][0][0], 1e-12) for r in steps.rates]
    assert ratios == pytest.approx([0] * 8 + [0.25, 0.5, 0.75] + [1] * 5)
    assert {decay for _, decay, _ in steps.rates[3]["backbone"]} == {0}
    assert {decay for _, decay, decayed in steps.rates[9]["backbone"] if decayed} == {0.05}


def test_held_backbone__resumes_bit_for_bit_across_the_thaw(tmp_path):
    whole, parts = objective(FineTuning(freeze_epochs=1)), objective(FineTuning(freeze_epochs=1))
    toys.train(whole, tmp_path / "whole", epochs=3)
    assert not toys.train(parts, tmp_path / "parts", epochs=3, callbacks=[StopAfter(3)]).finished
    other = objective(FineTuning(freeze_epochs=1))
    nn.init.zeros_(other.backbone.model.head.weight)
    assert toys.train(other, tmp_path / "parts", epochs=3).finished
    assert not changed(whole.state_dict(), other.state_dict())


def test_layer_decay__reaches_the_optimizer(tmp_path):
    tuned, steps = objective(FineTuning(layer_decay=0.5)), Steps()
    before = snapshot(tuned.backbone.model)
    toys.train(tuned, tmp_path, epochs=1, average=None, callbacks=[steps])
    assert changed(before, tuned.backbone.model.state_dict()) == set(before)
    # Two blocks between stem and classifier: 1/8, 1/4 and 1/2 of the classifier's rate.
    main = steps.rates[2]["main"][0][0]
    ratios = {label: {round(rate / main, 9) for rate, _, _ in groups} for label, groups in steps.rates[2].items()}
    assert ratios == {"layer 0": {0.125}, "layer 1": {0.25}, "layer 2": {0.5}, "main": {1.0}}


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"])
def test_group_scales__are_those_of_the_layers(name):
    with meta_device():
        model = timm.create_model(name, num_classes=4)
    tuner = BackboneTuner(model, FineTuning(layer_decay=0.75, freeze_epochs=1))
    expected, heads = layer_lr_scales(model, 0.75), classifier_parameters(model)
    for step, share in ((0, 0.0), (9, 0.0), (10, 0.1), (14, 0.5), (19, 1.0), (99, 1.0)):
        scales = tuner.scales(Progress(step, 100, 10))
        for parameter, _ in model.named_parameters():
            scale = scales.get(tuner.label(f"backbone.model.{parameter}"), GroupScale())
            wanted = expected[parameter] * (1 if parameter in heads else share)
            assert scale.lr == pytest.approx(wanted), (step, parameter)
            assert scale.weight_decay == (0 if step < 10 and parameter not in heads else 1)
    assert tuner.label("terms.0.head.weight") == "main"


def test_by_default__nothing_is_grouped_or_frozen():
    free = objective(None)
    assert {free.parameter_group(name) for name, _ in free.named_parameters()} == {"main"}
    assert not free.group_scales(Progress(0, 10, 5))
    assert all(p.requires_grad for p in free.parameters())


def test_tuning__and_a_copied_objective_are_independent():
    first = objective(FineTuning(freeze_epochs=1))
    second = copy.deepcopy(first)
    for one in (first, second):
        for p in one.parameters():
            p.grad = torch.ones_like(p)
    second.before_step(Progress(0, 10, 5))
    assert all(p.grad is not None for p in first.parameters())
    assert [n for n, p in second.named_parameters() if p.grad is not None] == [
        "backbone.model.head.weight",
        "backbone.model.head.bias",
    ]


def test_nonsense__is_refused():
    with pytest.raises(UserError, match="--freeze is 3, but vit_mini has 2 stages or blocks"):
        objective(FineTuning(freeze=3))
    with pytest.raises(ValueError, match="layer_decay"):
        FineTuning(layer_decay=0)
    with pytest.raises(ValueError, match="freeze_epochs"):
        FineTuning(freeze_epochs=-1)
