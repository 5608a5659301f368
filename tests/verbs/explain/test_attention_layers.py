"""Which layers `--layer` draws, of heads and of DHVT's head tokens."""

import numpy as np
import pytest
import timm
import torch

import paucal  # noqa: F401 (registers the models)
from paucal.backbones.spec import BackboneSpec
from paucal.explain.attention.maps import averaged
from paucal.explain.attention.reading import read_attention
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import TrainedModel
from paucal.types import UserError
from paucal.verbs.explain import attention
from paucal.verbs.explain.attention import head_tokens_view, heads_view
from paucal.verbs.explain.inputs import ExplainInput
from paucal.verbs.explain.settings import ExplainSettings

IMAGE = ExplainInput("a.png", np.zeros((16, 16, 3)), torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0)))


def dhvt(depth: int, heads: int = 4) -> TrainedModel:
    arguments = {"depth": depth, "embed_dim": 32, "num_heads": heads}
    spec = BackboneSpec("dhvt_tiny_cifar_patch4", 2, image_size=(16, 16), arguments=arguments)
    model = timm.create_model(spec.name, num_classes=2, **arguments).eval()
    preprocessing = Preprocessing((16, 16), 1.0, "bicubic", (0.5,) * 3, (0.2,) * 3)
    return TrainedModel(model, ModelCard(spec, ("a", "b"), preprocessing), torch.device("cpu"))


def drawn_matrices(monkeypatch: pytest.MonkeyPatch, model: TrainedModel, settings: ExplainSettings):
    """Return the titles and the matrices that DHVT's picture of averaged attention is drawn from."""
    kept = {}

    def keep(matrices, tokens, titles):
        kept.update(zip(titles, matrices, strict=True))

    monkeypatch.setattr(attention, "matrices_figure", keep)
    monkeypatch.setattr(attention, "maps_figure", lambda *rest: rest[2])
    return kept, head_tokens_view(model, IMAGE, settings)["head_tokens"]


# DHVT's supplement: figures 3 to 5 show layers 2, 5, 8 and 11, figure 7 all twelve, both counted from 1.
@pytest.mark.parametrize(
    ("depth", "asked", "layers"),
    [
        (12, None, [2, 5, 8, 11]),
        (12, ["all"], list(range(1, 13))),
        (12, [2, 5, 8, 11], [2, 5, 8, 11]),
        (12, ["11", "2", 2], [2, 11]),
        (12, ["blocks.4.attn"], [5]),
        (4, None, [1, 2, 3, 4]),
        (2, None, [1, 2]),
    ],
)
def test_head_tokens__of_the_layers_that_are_asked_for(monkeypatch, depth, asked, layers):
    model = dhvt(depth)
    matrices, titles = drawn_matrices(monkeypatch, model, ExplainSettings(layer=asked))
    assert list(matrices) == [f"layer {number}" for number in layers]
    assert titles == [f"layer {number}, head {head}" for number in layers for head in (1, 2, 3, 4)]
    maps = read_attention(model.module, IMAGE.view[None])
    for number in layers:
        torch.testing.assert_close(matrices[f"layer {number}"], averaged(maps[number - 1])[0])


def test_heads__of_several_layers_are_a_picture_each():
    model = dhvt(4, heads=2)
    assert list(heads_view(model, IMAGE, ExplainSettings())) == ["attention"]
    assert list(heads_view(model, IMAGE, ExplainSettings(layer=[2]))) == ["attention"]
    both = heads_view(model, IMAGE, ExplainSettings(layer=["blocks.3.attn", 1], token=["0,0", "class"]))
    assert list(both) == ["attention_layer_1", "attention_layer_4"]
    assert list(heads_view(model, IMAGE, ExplainSettings(layer=["all"]))) == [
        f"attention_layer_{number}" for number in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("word", ["0", 5, "al", "blocks.4.attn", "-1"])
def test_layer__that_is_none_of_the_networks_is_named(word):
    with pytest.raises(UserError, match=rf"--layer is '{word}'; expected all, a number from 1 to 4, or one of"):
        head_tokens_view(dhvt(4), IMAGE, ExplainSettings(layer=[1, word]))
