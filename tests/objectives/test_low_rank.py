"""Low-rank adapters against their definition, and an ordinary network at every moment."""

import copy
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F

from contracts import toys
from contracts.test_objectives import StopAfter, same
from paucal.methods.supervised import check_tuning, fine_tuning, tuning_remarks
from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Supervised
from paucal.objectives.finetuning import FineTuning, attention_layers
from paucal.types import Batch, Progress, UserError

START = Progress(0, 10, 10)
LABELS = torch.arange(6) % 10


def adapted(seed: int = 0) -> Supervised:
    torch.manual_seed(seed)
    return Supervised(toys.spec().build(), tuning=FineTuning(lora_rank=2))


def a_batch() -> Batch:
    images = torch.randn(6, 3, toys.SIZE, toys.SIZE, generator=torch.Generator().manual_seed(1))
    return Batch(torch.arange(6), [images], LABELS)


def test_layers__are_queries_keys_values_and_projections():
    swin = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1))
    assert list(attention_layers(swin))[:2] == ["layers.0.blocks.0.attn.qkv", "layers.0.blocks.0.attn.proj"]
    assert len(attention_layers(swin)) == 8
    beit = timm.create_model("beit_base_patch16_224", depth=1, embed_dim=32, num_heads=2)
    assert list(attention_layers(beit)) == ["blocks.0.attn.qkv", "blocks.0.attn.proj"]
    assert not attention_layers(timm.create_model("resnet18"))
    said = r"--lora-rank adds adapters to attention layers, but .* has no attention layers"
    with pytest.raises(UserError, match=said):
        Supervised(toys.BackboneSpec("test_resnet", 10, image_size=(16, 16)).build(), tuning=FineTuning(lora_rank=2))


def test_gradients__are_those_of_adapters_beside_each_layer():
    objective = adapted()
    adapters: Any = objective.adapters
    layers = attention_layers(objective.backbone.model)
    for matrix in adapters.up:
        torch.nn.init.normal_(matrix, std=0.1)
    naive = copy.deepcopy(objective.backbone.model)
    for layer, product in zip(layers.values(), adapters.products(), strict=True):  # the weights hold the products
        layer.weight.data += product.detach()
    down, up = ([matrix.detach().clone().requires_grad_() for matrix in own] for own in (adapters.down, adapters.up))
    for number, layer in enumerate(attention_layers(naive).values()):

        def add(layer: Any, inputs: Any, output: Any, n: int = number) -> Any:
            return output + F.linear(F.linear(inputs[0], down[n]), up[n])

        layer.register_forward_hook(add)
    batch = a_batch()
    loss = objective.train()(batch, START).total
    expected = F.cross_entropy(naive(batch.views[0]), LABELS)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    loss.backward()
    expected.backward()
    for own, theirs in ((adapters.down, down), (adapters.up, up)):
        for one, other in zip(own, theirs, strict=True):
            assert other.grad.abs().max().item() > 1e-5
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_weights__follow_the_adapters_and_the_rest_stays(tmp_path):
    objective = adapted()
    assert objective.adapters is not None
    model, before = objective.backbone.model, copy.deepcopy(objective.backbone.model.state_dict())
    learning = {name for name, p in objective.named_parameters() if p.requires_grad}
    assert learning == {f"adapters.{part}.{n}" for part in ("down", "up") for n in range(2)} | {
        "backbone.model.head.weight", "backbone.model.head.bias",
    }  # fmt: skip
    toys.train(objective, tmp_path, epochs=2)
    merged = {f"{name}.weight" for name in attention_layers(model)}
    after = model.state_dict()
    assert list(after) == list(before)
    assert {name for name in before if not torch.equal(before[name], after[name])} == merged | {
        "head.weight", "head.bias",
    }  # fmt: skip
    for name, product in zip(attention_layers(model), objective.adapters.products(), strict=True):
        torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + product, rtol=1e-5, atol=1e-6)
        assert torch.linalg.matrix_rank(product.detach()) == 2
    objective.train()
    batch = a_batch()
    expected = F.cross_entropy(model(batch.views[0]), LABELS)  # the network alone, as it is deployed
    assert objective(batch, START).total.item() == pytest.approx(expected.item(), abs=1e-6)


def test_adapters__are_held_while_only_the_classifier_learns(tmp_path):
    torch.manual_seed(0)
    objective = Supervised(toys.spec().build(), tuning=FineTuning(lora_rank=2, freeze_epochs=1))
    adapters: Any = objective.adapters
    before = copy.deepcopy(objective.backbone.model.state_dict())
    toys.train(objective, tmp_path / "held", epochs=1)
    after = objective.backbone.model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    assert not any(matrix.any() for matrix in adapters.up)
    toys.train(objective, tmp_path / "free", epochs=2)  # one more epoch for the classifier, and one for all
    assert all(matrix.any() for matrix in adapters.up)


def test_resuming__equals_not_stopping_bit_for_bit(tmp_path):
    whole, other = adapted(), adapted(seed=99)
    toys.train(whole, tmp_path / "whole")
    assert not toys.train(adapted(), tmp_path / "parts", callbacks=[StopAfter(6)]).finished
    assert toys.train(other, tmp_path / "parts").finished
    assert same(whole.state_dict(), other.state_dict())


def test_settings__are_refused_where_adapters_would_not_help():
    assert fine_tuning(TrainSettings(lora_rank=8)).lora_rank == 8
    with pytest.raises(UserError, match="remove --freeze"):
        fine_tuning(TrainSettings(lora_rank=8, freeze=2))
    with pytest.raises(UserError, match="not supported with --compile"):
        fine_tuning(TrainSettings(lora_rank=8, compile=True))
    objective = adapted()
    check_tuning(TrainSettings(lora_rank=8), objective, [16, 40])
    check_tuning(TrainSettings(), objective, [1, 1])
    assert tuning_remarks(TrainSettings(lora_rank=8), objective) == []
    with pytest.raises(UserError, match="needs 16 training images of each class, but the smallest class has 15"):
        check_tuning(TrainSettings(lora_rank=8), objective, [40, 15])
