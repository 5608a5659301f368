"""OpenVINO models, converted from an ONNX graph: with float16 weights, or quantised to 8 bits by NNCF (statically)."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.export.program import discard_output
from paucal.models.card import ModelCard

CARD_KEY = "paucal"  # key of the model's card in the rt_info section of the XML file
TOLERANCE = 0.02  # largest accepted difference between a probability with float16 and with float32 weights
ATTENTION = ("Softmax", "ScaledDotProductAttention")  # a network with one of these operations counts as a transformer


def write(onnx: bytes, card: ModelCard, path: Path, calibration: Iterable[NDArray[Any]] | None = None) -> None:
    """Write an OpenVINO model: graph and card to the XML file `path`, and weights to a `.bin` file of the same name.

    `onnx` is the content of an ONNX file. Weights are float16, or 8 bits if `calibration` has (1, C, H, W) inputs for
    measuring the ranges of activations.
    """
    import openvino  # type: ignore[import-not-found]

    model = openvino.Core().read_model(onnx)
    if calibration is not None:
        inputs = [*calibration]
        os.environ.setdefault("NNCF_CI", "1")  # disables telemetry on import
        with discard_output():
            import nncf  # type: ignore[import-not-found]

            is_transformer = any(node.get_type_name() in ATTENTION for node in model.get_ops())
            model = nncf.quantize(
                model,
                nncf.Dataset(inputs),
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(inputs),
                model_type=nncf.ModelType.TRANSFORMER if is_transformer else None,
            )
    model.set_rt_info(json.dumps(card.to_dict(), ensure_ascii=False), CARD_KEY)
    openvino.save_model(model, path, compress_to_fp16=True)


class OpenVinoNetwork(nn.Module):
    """An OpenVINO model as a module, which runs in float32 on the CPU with torch's number of threads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        import openvino  # type: ignore[import-not-found]

        options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        self.compiled = openvino.Core().compile_model(path, "CPU", options)

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's first output for its first input."""
        return torch.from_numpy(self.compiled(images.numpy())[0])
