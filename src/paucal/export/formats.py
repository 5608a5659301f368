"""The formats of exported graphs: functions that write, load and quantise a model, and the required packages."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import nn
from torch.export import ExportedProgram

from paucal.export import browser_page, coreml_model, litert_model, openvino_model
from paucal.export.onnx_model import OnnxNetwork, quantise, to_onnx
from paucal.export.program import Graph, pack_program, trace_program, unpack_program
from paucal.models.card import ModelCard
from paucal.types import UserError

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class ExportSource:
    """A graph to export in one or several formats. The graph is traced only once."""

    def __init__(self, graph: Graph, card: ModelCard, onnxruntime_web: Path | None = None) -> None:
        self.graph, self.card, self.onnxruntime_web = graph, card, onnxruntime_web

    @cached_property
    def program(self) -> ExportedProgram:
        """The graph as a program of `torch.export`."""
        return trace_program(self.graph)

    @cached_property
    def onnx(self) -> bytes:
        """The graph as the content of an ONNX file."""
        return to_onnx(self.program, self.graph, self.card)


@dataclass(frozen=True)
class Format:
    """One format of exported graphs."""

    suffix: str  # suffix of the file name
    write: Callable[[ExportSource, Path], object]  # writes a graph to a path
    load: Callable[[Path], nn.Module]  # loads a file as a module, which runs in the format's runtime
    extra: str = ""  # extra of the paucal package that installs `packages`; "" if no packages are required
    packages: tuple[str, ...] = ()  # names of the required Python modules
    tolerance: float = 1e-3  # largest accepted difference between the file's and the model's probability of a class
    # True if files of this format always include the preprocessing, so that their input is pixels. False if they never
    # include the preprocessing, so that their input is normalised images. None if the user chooses.
    pixels: bool | None = None
    platform: str = ""  # `sys.platform` on the only platform that can run the files; "" if all platforms can
    # Writes a graph quantised to 8 bits to a path. The third argument is (1, C, H, W) inputs for calibration. None if
    # the format does not support 8 bits.
    quantise: Callable[[ExportSource, Path, Iterable[NDArray[Any]]], object] | None = None

    @property
    def runs_here(self) -> bool:
        """Whether the format's runtime is available for this platform."""
        return self.platform in ("", sys.platform)

    @property
    def installed(self) -> bool:
        """Whether all required packages are installed."""
        return all(find_spec(name) for name in self.packages)

    def require_installed(self, name: str) -> None:
        """Raise a UserError if required packages are missing."""
        if not self.installed:
            raise UserError(
                f"--format {name} needs {', '.join(self.packages)}: install them with pip install "
                f"'paucal[{self.extra}]'."
            )


GRAPHS: dict[str, Format] = {
    "pt2": Format(
        ".pt2",
        lambda source, path: path.write_bytes(pack_program(source.program, source.card)),
        lambda path: unpack_program(path.read_bytes()),
    ),
    "onnx": Format(
        ".onnx",
        lambda source, path: path.write_bytes(source.onnx),
        lambda path: OnnxNetwork(path.read_bytes()),
        extra="onnx",
        packages=ONNX_PACKAGES,
        quantise=lambda source, path, inputs: path.write_bytes(quantise(source.onnx, source.graph.input, inputs)),
    ),
    "openvino": Format(
        ".xml",
        lambda source, path: openvino_model.write(source.onnx, source.card, path),
        openvino_model.OpenVinoNetwork,
        extra="openvino",
        packages=("openvino", "nncf", *ONNX_PACKAGES[:2]),
        tolerance=openvino_model.TOLERANCE,
        quantise=lambda source, path, inputs: openvino_model.write(source.onnx, source.card, path, inputs),
    ),
    "litert": Format(
        ".tflite",
        lambda source, path: litert_model.write(source.graph, source.card, path),
        litert_model.LiteRtNetwork,
        extra="litert",
        packages=("litert_torch", "ai_edge_litert"),
        pixels=False,
        quantise=lambda source, path, inputs: litert_model.write(source.graph, source.card, path, inputs),
    ),
    "coreml": Format(
        ".mlpackage",
        lambda source, path: coreml_model.write(source.graph, source.card, path),
        coreml_model.CoreMlNetwork,
        extra="coreml",
        packages=("coremltools",),
        tolerance=coreml_model.TOLERANCE,
        pixels=False,
        platform="darwin",
    ),
    "html": Format(
        ".html",
        lambda source, path: browser_page.write(
            source.onnx, source.card, path, browser_page.runtime_files(source.onnxruntime_web)
        ),
        browser_page.load,
        extra="onnx",
        packages=ONNX_PACKAGES,
        pixels=True,
    ),
}
