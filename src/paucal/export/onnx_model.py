"""ONNX models: writing a network as ONNX, and reading the file back as a classifier."""

import json
import logging
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram

from paucal.export.program import Graph
from paucal.export.quiet import discard_output, first_line
from paucal.models.card import ModelCard
from paucal.models.saved import card_of_stored
from paucal.models.trained import TrainedModel
from paucal.types import UserError

KEY = "paucal"  # key of the card in the metadata of the file
MAX_BYTES = 2 << 30  # largest size that the format allows for one file
ENDING = ".onnx"
NEEDED = "needs onnx, onnxscript and onnxruntime: install them with pip install 'paucal[onnx]'."


def to_onnx(program: ExportedProgram, graph: Graph, card: ModelCard) -> bytes:
    """Return the content of an ONNX file, which carries the model's card."""
    onnx = _import_optional("onnx", "--format onnx")
    _import_optional("onnxscript", "--format onnx")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own deprecated functions
            onnx_graph = _export_quietly(program, graph)
    except Exception as problem:  # torch raises dozens of exception types, depending on the network
        raise UserError(
            f"this network cannot be written as ONNX ({first_line(problem)}): export it with --format pt2 or "
            "safetensors."
        ) from problem
    # Dynamic dimensions get readable names; torch gives them names such as s77.
    entry = onnx_graph.graph.input[0].type.tensor_type.shape.dim
    names = {entry[number].dim_param: name for number, name in graph.dynamic.items() if entry[number].dim_param}
    for value in (*onnx_graph.graph.input, *onnx_graph.graph.output, *onnx_graph.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.dim_param = names[dimension.dim_param]
    onnx.helper.set_model_props(onnx_graph, {KEY: json.dumps(card.to_dict(), ensure_ascii=False)})
    size = onnx_graph.ByteSize()
    if size >= MAX_BYTES:
        raise UserError(f"an ONNX file can have 2 GiB, but this network needs {size / 2**30:.1f}: use --format pt2.")
    return onnx_graph.SerializeToString()


def _export_quietly(program: ExportedProgram, graph: Graph) -> Any:
    log = logging.getLogger("torch.onnx")
    level, log.level = log.level, logging.ERROR
    try:
        onnx_program = torch.onnx.export(
            program, dynamo=True, input_names=[graph.input], output_names=[graph.output], verbose=False
        )
    finally:
        log.level = level
    if onnx_program is None:
        raise ValueError("torch gave no model")
    return onnx_program.model_proto


class OnnxNetwork(nn.Module):
    """An ONNX model as a module, run by onnxruntime on the CPU with torch's number of threads."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        runtime = _import_optional("onnxruntime", "an ONNX model")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # its warnings would bypass Python and go to the terminal
        try:
            self.session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as problem:  # onnxruntime's exceptions have no other common base class
            raise UserError(
                f"onnxruntime cannot read this ONNX model ({first_line(problem)}): export it again."
            ) from problem
        self.input = self.session.get_inputs()[0]
        self.output = self.session.get_outputs()[0]

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the file."""
        return self.session.get_modelmeta().custom_metadata_map

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's first output for its first input."""
        return torch.from_numpy(self.compute(images.cpu().numpy())).to(images.device)

    def compute(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Return the model's first output for an array."""
        return self.session.run([self.output.name], {self.input.name: images})[0]


def read_onnx(path: Path) -> TrainedModel:
    """Read back a model that `paucal export --format onnx` has written."""
    if not path.is_file():
        raise UserError(f"there is no ONNX model at {str(path)!r}.")
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"{str(path)!r} has more than the 2 GiB that an ONNX file may have.")
    network = OnnxNetwork(path.read_bytes())
    if KEY not in network.metadata:
        raise UserError(f"{str(path)!r} was not written by paucal export: it has no classes and preprocessing.")
    try:
        card = card_of_stored(json.loads(network.metadata[KEY]))
    except ValueError as problem:
        raise UserError(f"{str(path)!r} has a damaged model card ({problem}): export it again.") from problem
    if network.input.name != "images":
        raise UserError(
            f"{str(path)!r} takes pixels and returns probabilities: it is for other programs; paucal reads models "
            "that were exported without --with-preprocessing."
        )
    _require_fit(path, network, card)
    return TrainedModel(network.eval(), card, torch.device("cpu"))


def _require_fit(path: Path, network: OnnxNetwork, card: ModelCard) -> None:
    size = card.preprocessing.image_size
    takes, gives = list(network.input.shape), list(network.output.shape)
    fits = len(takes) == 4 and all(
        type(graph_side) is str or graph_side == side for graph_side, side in zip(takes[2:], size, strict=True)
    )
    if not fits or takes[1] != card.backbone.in_chans or gives[1:] != [len(card.classes)]:
        raise UserError(
            f"{str(path)!r} takes {takes} and gives {gives}, but its card has images of {size} pixels and "
            f"{len(card.classes)} classes: export it again."
        )


def _import_optional(name: str, purpose: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as problem:
        raise UserError(f"{purpose} {NEEDED}") from problem


def quantise(content: bytes, name: str, images: Iterable[NDArray[Any]]) -> bytes:
    """Return the model in 8 bits, by static quantisation with a scale for each output channel of the weights.

    The (1, C, H, W) float32 images are inputs, from which the ranges of activations are measured.
    """
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as problem:
        raise UserError(f"--int8 {NEEDED}") from problem

    left = iter([*images])  # images are read here, so that a bad image is not reported as a fault of onnxruntime

    class Reader(quantization.CalibrationDataReader):
        """Returns the images one by one to onnxruntime."""

        def get_next(self) -> dict[str, NDArray[Any]]:
            """Return the next input; None after the last."""
            image = next(left, None)
            return None if image is None else {name: image}  # type: ignore[return-value]

    with tempfile.TemporaryDirectory(prefix="paucal-int8-") as place, discard_output():
        float_file, prepared_file, int8_file = (Path(place) / f"{stage}.onnx" for stage in ("whole", "ready", "small"))
        float_file.write_bytes(content)
        try:
            quant_pre_process(float_file, prepared_file, skip_symbolic_shape=True)
            quantization.quantize_static(
                prepared_file,
                int8_file,
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                per_channel=True,
                extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
            )
        except Exception as problem:  # onnxruntime's exceptions have no other common base class
            raise UserError(
                f"onnxruntime cannot turn this network into 8 bits ({first_line(problem)}): leave out --int8."
            ) from problem
        return int8_file.read_bytes()
