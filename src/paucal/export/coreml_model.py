"""Core ML models for Apple devices, which can be written on any system but run only on macOS."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paucal.export.program import Graph, quiet_conversion
from paucal.models.card import ModelCard
from paucal.types import UserError

TOLERANCE = 0.02  # largest accepted difference between a probability computed in float16 and in float32

# coremltools does not support alias operations, which return their input, or mean and variance in a single operation.
DECOMPOSITIONS: dict[Any, Any] = {
    torch.ops.aten.alias.default: lambda tensor: tensor,
    torch.ops.aten.var_mean.correction: lambda tensor, dims, keepdim=False, **keywords: (
        tensor.var(dims, keepdim=keepdim, **keywords),
        tensor.mean(dims, keepdim=keepdim),
    ),
}


def write(graph: Graph, card: ModelCard, path: Path) -> None:
    """Write a graph with a batch size of 1 in float16 as a folder `path` with the suffix `.mlpackage`."""
    example = graph.example[:1]
    with quiet_conversion("this network cannot be exported to Core ML", "use --format onnx"), torch.no_grad():
        import coremltools  # type: ignore[import-not-found]

        expected_shapes = {graph.input: [*example.shape], graph.output: [*graph.module(example).shape]}
        model: Any = coremltools.convert(
            torch.export.export(graph.module, (example,), strict=False).run_decompositions(DECOMPOSITIONS),
            inputs=[coremltools.TensorType(name=graph.input, shape=tuple(example.shape))],
            outputs=[coremltools.TensorType(name=graph.output)],
            convert_to="mlprogram",
        )
    description = model.get_spec().description
    shapes = {
        feature.name: [*feature.type.multiArrayType.shape] for feature in (*description.input, *description.output)
    }
    if shapes != expected_shapes:
        raise UserError(f"the Core ML file has the shapes {shapes}, expected {expected_shapes}: use --format onnx.")
    model.user_defined_metadata["paucal"] = json.dumps(card.to_dict(), ensure_ascii=False)
    model.save(str(path))


class CoreMlNetwork(nn.Module):
    """A Core ML model as a module, which runs only on macOS."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        import coremltools  # type: ignore[import-not-found]

        self.model: Any = coremltools.models.MLModel(str(path))
        description = self.model.get_spec().description
        self.input, self.output = description.input[0].name, description.output[0].name

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's output for a batch of one image."""
        return torch.from_numpy(self.model.predict({self.input: images.numpy()})[self.output])
