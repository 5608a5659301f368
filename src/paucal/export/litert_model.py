"""LiteRT models (formerly TensorFlow Lite) for Android and small boards, in float32 or statically quantised to 8 bits.

The requirements of litert-torch specify the newest version of torch that litert-torch supports.
"""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.export.program import Graph, quiet_conversion
from paucal.models.card import ModelCard

SIGNATURE = "serving_default"  # name that litert-torch gives to a model's signature (its inputs and outputs)


def write(graph: Graph, card: ModelCard, path: Path, calibration: Iterable[NDArray[Any]] | None = None) -> None:
    """Write a LiteRT model with a batch size of 1, and write the model's card as `model.json` into the same folder.

    `path` has the suffix `.tflite`. The model is in float32, or in 8 bits if `calibration` has (1, C, H, W) inputs for
    measuring the ranges of activations.
    """
    inputs = None if calibration is None else [*calibration]
    with quiet_conversion("this network cannot be exported to LiteRT", "use --format onnx"):
        import litert_torch  # type: ignore[import-not-found]

        model = litert_torch.convert(graph.module, (graph.example[:1],))
        if inputs is None:
            model.export(str(path))
        else:
            _quantise(model, path, inputs)
    (path.parent / "model.json").write_text(json.dumps(card.to_dict(), indent=2, ensure_ascii=False) + "\n")


def _quantise(model: Any, path: Path, inputs: Iterable[NDArray[Any]]) -> None:
    from ai_edge_quantizer import qtyping, quantizer, recipe  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(prefix="paucal-int8-") as folder:
        float_file = Path(folder) / "float.tflite"
        model.export(str(float_file))
        name = next(iter(_interpreter(float_file).get_signature_list()[SIGNATURE]["inputs"]))
        model_quantizer = quantizer.Quantizer(str(float_file), recipe.static_wi8_ai8())
        for operation in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):  # not quantised
            model_quantizer.update_quantization_recipe(".*", operation, algorithm_key="no_quantize")
        ranges = model_quantizer.calibrate({SIGNATURE: [{name: example} for example in inputs]})
        model_quantizer.quantize(ranges).export_model(str(path))


def _interpreter(path: Path) -> Any:
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-not-found]

    interpreter = Interpreter(str(path), num_threads=torch.get_num_threads())
    interpreter.allocate_tensors()
    return interpreter


class LiteRtNetwork(nn.Module):
    """A LiteRT model as a module, which runs on the CPU with torch's number of threads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.interpreter = _interpreter(path)
        self.input, self.output = (
            details[0]["index"]
            for details in (self.interpreter.get_input_details(), self.interpreter.get_output_details())
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's output for a batch of one image."""
        self.interpreter.set_tensor(self.input, images.numpy())
        self.interpreter.invoke()
        return torch.from_numpy(self.interpreter.get_tensor(self.output))
