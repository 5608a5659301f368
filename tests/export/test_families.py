"""Every family's graph gives what the network gives, for batches of any size."""

import functools
import json

import pytest
import torch
from torch import nn

from contracts.reduced_models import ONE_EACH, build, images, reduced
from paucal.backbones.spec import BackboneSpec
from paucal.export.onnx_model import CARD_KEY, OnnxNetwork, read_onnx, to_onnx
from paucal.export.program import graph_of, pack_program, trace_program, unpack_program
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import TrainedModel
from paucal.types import UserError

CLASSES = tuple("abcde")


def deployed(name, size):
    spec = BackboneSpec("resnet10t", len(CLASSES), image_size=size)  # a card needs one; the network is the reduced one
    preprocessing = Preprocessing(size, 1.0, "bicubic", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return TrainedModel(build(name), ModelCard(spec, CLASSES, preprocessing, 1.5), torch.device("cpu"))


@functools.cache
def exported(name):
    """Return a model, its program and the content of its ONNX file."""
    model = deployed(name, reduced(name).size)
    graph = graph_of(model, preprocessing=False)
    program = trace_program(graph)
    return model, program, to_onnx(program, graph, model.card)


def check(name):
    model, program, content = exported(name)
    batch = images(reduced(name).size, count=3)
    with torch.no_grad():
        wanted = model.module(batch)
        torch.testing.assert_close(
            unpack_program(pack_program(program, model.card))(batch), wanted, rtol=1e-4, atol=1e-5
        )
    network = OnnxNetwork(content)
    torch.testing.assert_close(network(batch), wanted, rtol=1e-3, atol=1e-4)
    assert network.input.shape[0] == "batch"
    assert ModelCard.from_dict(json.loads(network.metadata[CARD_KEY])) == model.card


def first_of(start):
    return next(name for name in ONE_EACH if name.startswith(start))


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_EACH)
def test_export__equals_the_network(name):
    check(name)


def test_export__equals_the_network_of_one_family():
    check(first_of("dhvt"))


def test_read_onnx__gives_the_model_back(tmp_path):
    model, _, content = exported(first_of("dhvt"))
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    found = read_onnx(path)
    assert found.card == model.card
    batch = images(model.card.preprocessing.image_size)
    with torch.no_grad():
        torch.testing.assert_close(found.module(batch), model.module(batch), rtol=1e-3, atol=1e-4)


def test_from_pixels__takes_images_of_any_size_and_gives_probabilities(tmp_path):
    size = (16, 20)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(3 * size[0] * size[1], len(CLASSES))).eval()
    model = TrainedModel(network, deployed(first_of("vit"), size).card, torch.device("cpu"))
    graph = graph_of(model, preprocessing=True)
    content = to_onnx(trace_program(graph), graph, model.card)
    network = OnnxNetwork(content)
    pixels = torch.randint(0, 256, (3, 31, 57, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network(pixels), graph.module(pixels), rtol=1e-3, atol=1e-4)
    assert network(pixels).sum(1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    path = tmp_path / "pixels.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match="includes the preprocessing"):
        read_onnx(path)
