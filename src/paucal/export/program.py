"""A network, alone or with its preprocessing, as a `torch.export` program that runs without this project."""

import io
import json
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from paucal.export.preprocessing import PixelInput
from paucal.export.quiet import first_line
from paucal.models.card import ModelCard
from paucal.models.trained import TrainedModel
from paucal.types import UserError

CARD = "model.json"  # name of the card among the extra files of a .pt2
EXAMPLES = 2  # batch size of the example; torch.export would treat a batch size of 1 as a constant
LONGER = 40  # pixels added to each side to test a program at a size other than the traced one


class FromPixels(nn.Module):
    """A classifier from pixels to probabilities, with its preprocessing inside.

    Shape:
        - pixels: (N, H, W, 3) uint8
        - output: (N, K) probabilities, with the temperature of the model
    """

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.input, self.network = PixelInput(model.card.preprocessing), model.module
        self.card = model.card

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the probabilities of each class."""
        return self.card.shares(self.network(self.input(pixels)))


@dataclass(frozen=True)
class Graph:
    """A module with the information that an exporter needs.

    Attributes:
        module: Module in evaluation mode, on the CPU.
        example: Input with which the module is traced.
        dynamic: Names of the input's dynamic dimensions, which may have any length, by their index.
        input: Name of the input: "images", normalised floats, or "pixels", bytes.
        output: Name of the output: "logits" or "probabilities".
    """

    module: nn.Module
    example: Tensor
    dynamic: dict[int, str]
    input: str
    output: str


def graph_of(model: TrainedModel, preprocessing: bool) -> Graph:
    """Return the graph that is exported from a model."""
    height, width = model.card.preprocessing.image_size
    if not preprocessing:
        example = torch.zeros(EXAMPLES, model.card.backbone.in_chans, height, width)
        return Graph(model.module.eval(), example, {0: "batch"}, "images", "logits")
    pixels = torch.zeros(EXAMPLES, height + 32, width + 48, 3, dtype=torch.uint8)
    names = {0: "batch", 1: "height", 2: "width"}
    return Graph(FromPixels(model).eval(), pixels, names, "pixels", "probabilities")


def trace_program(graph: Graph) -> ExportedProgram:
    """Return the exported program of a graph, in which the graph's dynamic dimensions may have any length."""
    dynamic_shapes: Any = ({number: Dim.DYNAMIC for number in graph.dynamic},)
    shape = [*graph.example.shape]
    for number, name in graph.dynamic.items():
        shape[number] += 1 if name == "batch" else LONGER
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own deprecated functions
            program = torch.export.export(graph.module, (graph.example,), dynamic_shapes=dynamic_shapes, strict=False)
            program.module()(graph.example.new_zeros(shape))  # fails if a dynamic length became a constant
            return program
    except Exception as problem:  # torch raises dozens of exception types, depending on the network
        raise UserError(
            f"torch.export cannot write this network with {' and '.join(graph.dynamic.values())} of any length "
            f"({first_line(problem)}): its weights are in the run's model.safetensors."
        ) from problem


def pack_program(program: ExportedProgram, card: ModelCard) -> bytes:
    """Return the content of a .pt2 file, which carries the model's card."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own deprecated functions
        try:
            torch.export.save(program, content, extra_files={CARD: json.dumps(card.to_dict(), ensure_ascii=False)})
        except Exception as problem:  # torch raises many types, and names the operation in the first line
            raise UserError(
                f"torch cannot store this network as a .pt2 ({first_line(problem)}): export it with --format onnx."
            ) from problem
    return content.getvalue()


def unpack_program(content: bytes) -> nn.Module:
    """Return the network of a .pt2 that this process has written; loading a .pt2 from elsewhere may run any code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(io.BytesIO(content)).module()
