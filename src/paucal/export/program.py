"""Export of a network, with or without its preprocessing, as a `torch.export` program that runs without paucal.

All converters run in `quiet_conversion`, without their progress, warnings and banners.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from paucal.export.preprocessing import PixelPreprocessing
from paucal.models.card import ModelCard
from paucal.models.trained import TrainedModel
from paucal.types import UserError

CARD = "model.json"  # name of the model's card among the extra files of a .pt2 file
BATCH_SIZE = 2  # batch size of the example input; torch.export would treat a batch size of 1 as a constant
ADDED_PIXELS = 40  # pixels added to height and width, to test a program at a size other than the traced size


class FromPixels(nn.Module):
    """A classifier that includes the preprocessing and returns probabilities; the card's temperature is applied."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.input, self.network = PixelPreprocessing(model.card.preprocessing), model.module
        self.card = model.card

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the (N, K) probabilities for (N, H, W, 3) uint8 pixels."""
        return self.card.probabilities(self.network(self.input(pixels)))


@dataclass(frozen=True)
class Graph:
    """A module to export, with an example input and the names of its input and output."""

    module: nn.Module  # module in evaluation mode, on the CPU
    example: Tensor  # input with which the module is traced
    dynamic: dict[int, str]  # names of the input's dimensions that may have any size, by the dimension's index
    input: str  # name of the input: "images" for normalised float images, "pixels" for uint8 pixels
    output: str  # name of the output: "logits" or "probabilities"


def graph_of(model: TrainedModel, preprocessing: bool) -> Graph:
    """Return the graph of a model for export, with or without its preprocessing."""
    height, width = model.card.preprocessing.image_size
    if not preprocessing:
        example = torch.zeros(BATCH_SIZE, model.card.backbone.in_chans, height, width)
        return Graph(model.module.eval(), example, {0: "batch"}, "images", "logits")
    pixels = torch.zeros(BATCH_SIZE, height + 32, width + 48, 3, dtype=torch.uint8)
    names = {0: "batch", 1: "height", 2: "width"}
    return Graph(FromPixels(model).eval(), pixels, names, "pixels", "probabilities")


def trace_program(graph: Graph) -> ExportedProgram:
    """Trace a graph with `torch.export`; the graph's dynamic dimensions stay dynamic in the program."""
    dynamic_shapes: Any = ({index: Dim.DYNAMIC for index in graph.dynamic},)
    shape = [*graph.example.shape]
    for index, name in graph.dynamic.items():
        shape[index] += 1 if name == "batch" else ADDED_PIXELS
    failure = f"torch.export cannot export this network with dynamic {' and '.join(graph.dynamic.values())}"
    with quiet_conversion(failure, "use the weights in the run's model.safetensors"), torch.no_grad():
        program = torch.export.export(graph.module, (graph.example,), dynamic_shapes=dynamic_shapes, strict=False)
        program.module()(graph.example.new_zeros(shape))  # fails if a dynamic dimension became constant
        return program


def pack_program(program: ExportedProgram, card: ModelCard) -> bytes:
    """Return the content of a .pt2 file, which includes the model's card."""
    content = io.BytesIO()
    with quiet_conversion("torch cannot store this network as a .pt2 file", "use --format onnx"):
        torch.export.save(program, content, extra_files={CARD: json.dumps(card.to_dict(), ensure_ascii=False)})
    return content.getvalue()


def unpack_program(content: bytes) -> nn.Module:
    """Return the network of a .pt2 file that this process has written; an untrusted file could execute any code."""
    with warnings.catch_warnings(action="ignore"):
        return torch.export.load(io.BytesIO(content)).module()


@contextlib.contextmanager
def discard_output() -> Iterator[None]:
    """Discard the output, the warnings and the log messages of a `with` block."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        logging.disable(previous_level)


@contextlib.contextmanager
def quiet_conversion(failure: str, advice: str) -> Iterator[None]:
    """Discard the output of a `with` block; turn any exception into a UserError that states `failure` and `advice`."""
    try:
        with discard_output():
            yield
    except Exception as problem:  # torch and converters raise dozens of exception types, depending on the network
        raise UserError(f"{failure} ({describe_exception(problem)}): {advice}.") from problem


def describe_exception(problem: Exception) -> str:
    """Return the type and the first line of an exception as text for a message."""
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:300] if lines else 'no reason'}"
