"""ONNX models: writing a network as an ONNX file, and loading the file as a classifier."""

import json
import tempfile
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram

from paucal.export.program import Graph, describe_exception, quiet_conversion
from paucal.models.card import ModelCard
from paucal.models.trained import TrainedModel, card_from_dict
from paucal.types import UserError

CARD_KEY = "paucal"  # key of the model's card in the metadata of the file
MAX_BYTES = 2 << 30  # largest size of an ONNX file
SUFFIX = ".onnx"
REQUIREMENTS_TEXT = "needs onnx, onnxscript and onnxruntime: install them with pip install 'paucal[onnx]'."


def to_onnx(program: ExportedProgram, graph: Graph, card: ModelCard) -> bytes:
    """Return the content of an ONNX file, with the model's card in its metadata."""
    onnx = _import_optional("onnx", "--format onnx")
    _import_optional("onnxscript", "--format onnx")
    with (
        quiet_conversion("this network cannot be exported to ONNX", "use --format pt2 or safetensors"),
        torch.no_grad(),
    ):
        onnx_program = torch.onnx.export(
            program, dynamo=True, input_names=[graph.input], output_names=[graph.output], verbose=False
        )
        if onnx_program is None:
            raise ValueError("torch returned no model")
        onnx_graph: Any = onnx_program.model_proto  # serialises the tensors
    # Torch gives dynamic dimensions names such as s77, which are replaced by readable names.
    input_dims = onnx_graph.graph.input[0].type.tensor_type.shape.dim
    readable_names = {
        input_dims[index].dim_param: name for index, name in graph.dynamic.items() if input_dims[index].dim_param
    }
    for value in (*onnx_graph.graph.input, *onnx_graph.graph.output, *onnx_graph.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in readable_names:
                dimension.dim_param = readable_names[dimension.dim_param]
    onnx.helper.set_model_props(onnx_graph, {CARD_KEY: json.dumps(card.to_dict(), ensure_ascii=False)})
    size = onnx_graph.ByteSize()
    if size >= MAX_BYTES:
        raise UserError(
            f"an ONNX file can be at most 2 GiB large, but this network is {size / 2**30:.1f} GiB: use --format pt2."
        )
    return onnx_graph.SerializeToString()


class OnnxNetwork(nn.Module):
    """An ONNX model as a module, which onnxruntime runs on the CPU with torch's number of threads."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        runtime = _import_optional("onnxruntime", "an ONNX model")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # otherwise onnxruntime writes warnings directly to the terminal
        try:
            self.session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as problem:  # onnxruntime's exceptions have no other common base class
            raise UserError(
                f"onnxruntime cannot read this ONNX model ({describe_exception(problem)}): export the model again."
            ) from problem
        self.input, self.output = self.session.get_inputs()[0], self.session.get_outputs()[0]
        self.metadata: Mapping[str, str] = self.session.get_modelmeta().custom_metadata_map

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's first output for its first input."""
        output = self.session.run([self.output.name], {self.input.name: images.cpu().numpy()})[0]
        return torch.from_numpy(output).to(images.device)


def read_onnx(path: Path) -> TrainedModel:
    """Read a model that was written by `paucal export --format onnx`."""
    if not path.is_file():
        raise UserError(f"there is no ONNX model at {str(path)!r}: check the path.")
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"{str(path)!r} is larger than 2 GiB, which is the limit for ONNX files: export again.")
    network = OnnxNetwork(path.read_bytes())
    if CARD_KEY not in network.metadata:
        raise UserError(
            f"{str(path)!r} was not written by 'paucal export', since its metadata contains no model card: give a file "
            "that 'paucal export' wrote, or the folder of a run."
        )
    try:
        card = card_from_dict(json.loads(network.metadata[CARD_KEY]))
    except ValueError as problem:
        raise UserError(f"{str(path)!r} has a damaged model card ({problem}): export the model again.") from problem
    if network.input.name != "images":
        raise UserError(
            f"{str(path)!r} includes the preprocessing, so only programs other than paucal can use it: export the "
            "model without --with-preprocessing."
        )
    size, input_shape, output_shape = card.preprocessing.image_size, [*network.input.shape], [*network.output.shape]
    # Dynamic sizes are strings.
    fits = len(input_shape) == 4 and all(
        type(graph_side) is str or graph_side == side for graph_side, side in zip(input_shape[2:], size, strict=True)
    )
    if not fits or input_shape[1] != card.backbone.in_chans or output_shape[1:] != [len(card.classes)]:
        raise UserError(
            f"{str(path)!r} has the input shape {input_shape} and the output shape {output_shape}, but its model card "
            f"specifies images of {size} pixels and {len(card.classes)} classes: export the model again."
        )
    return TrainedModel(network.eval(), card, torch.device("cpu"))


def _import_optional(name: str, purpose: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as problem:
        raise UserError(f"{purpose} {REQUIREMENTS_TEXT}") from problem


def quantise(content: bytes, input_name: str, images: Iterable[NDArray[Any]]) -> bytes:
    """Quantise the content of an ONNX file statically to 8 bits; each output channel of the weights has its own scale.

    `input_name` is the name of the model's input. `images` are (1, C, H, W) float32 inputs for measuring the ranges of
    activations.
    """
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as problem:
        raise UserError(f"--int8 {REQUIREMENTS_TEXT}") from problem

    # All images are read here, so that an unreadable image is not reported as a failure of onnxruntime.
    remaining_images = iter([*images])

    class Reader(quantization.CalibrationDataReader):
        """Passes the images to onnxruntime one by one."""

        def get_next(self) -> dict[str, NDArray[Any]]:
            """Return the next input; None after the last input."""
            image = next(remaining_images, None)
            return None if image is None else {input_name: image}  # type: ignore[return-value]

    with tempfile.TemporaryDirectory(prefix="paucal-int8-") as folder:
        stages = ("float", "prepared", "int8")
        float_file, prepared_file, int8_file = (Path(folder) / f"{stage}.onnx" for stage in stages)
        float_file.write_bytes(content)
        with quiet_conversion("onnxruntime cannot quantise this network to 8 bits", "remove --int8"):
            quant_pre_process(float_file, prepared_file, skip_symbolic_shape=True)
            quantization.quantize_static(
                prepared_file,
                int8_file,
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                per_channel=True,
                # Weights of 7 bits. On processors without VNNI instructions, sums of 8-bit products saturate: on such a
                # processor, a file agreed with its model for 42 % of the images instead of 93 %.
                reduce_range=True,
                extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
            )
        return int8_file.read_bytes()
