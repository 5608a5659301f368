"""An ONNX model with weights and activations of 8 bits, calibrated with real images."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from paucal.export.onnx_model import NEEDED
from paucal.types import UserError


def quantised(content: bytes, name: str, images: Iterable[NDArray[Any]]) -> bytes:
    """Return the model in 8 bits: static quantisation, each output channel of the weights with a scale of its own.

    Args:
        content: Content of an ONNX file.
        name: Name of its input.
        images: (1, C, H, W) float32 inputs, from which the ranges of activations are read.

    Raises:
        UserError: the packages are not installed, or onnxruntime cannot do it.
    """
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as problem:
        raise UserError(f"--int8 {NEEDED}") from problem

    class Reader(quantization.CalibrationDataReader):
        """Hands the images out, as onnxruntime asks for them."""

        def __init__(self) -> None:
            self.left: Iterator[NDArray[Any]] = iter(images)

        def get_next(self) -> dict[str, NDArray[Any]]:
            """Return the next input; None after the last."""
            image = next(self.left, None)
            return None if image is None else {name: image}  # type: ignore[return-value]

    with tempfile.TemporaryDirectory(prefix="paucal-int8-") as place:
        whole, ready, small = (Path(place) / f"{stage}.onnx" for stage in ("whole", "ready", "small"))
        whole.write_bytes(content)
        try:
            quant_pre_process(whole, ready, skip_symbolic_shape=True)
            quantization.quantize_static(
                ready,
                small,
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                per_channel=True,
                extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
            )
        except Exception as problem:  # its exceptions share no base but this one
            reason = (str(problem).splitlines() or ["no reason"])[0]
            raise UserError(
                f"onnxruntime cannot turn this network into 8 bits ({reason}): leave out --int8."
            ) from problem
        return small.read_bytes()
