"""The formats of exported graphs: how each is written, run and quantised to 8 bits, and what it needs."""

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

ONNX = ("onnx", "onnxscript", "onnxruntime")


class Source:
    """A graph that is written in several formats, and traced once."""

    def __init__(self, graph: Graph, card: ModelCard, onnxruntime_web: Path | None = None) -> None:
        self.graph, self.card, self.onnxruntime_web = graph, card, onnxruntime_web

    @cached_property
    def program(self) -> ExportedProgram:
        """The graph as torch.export's program."""
        return trace_program(self.graph)

    @cached_property
    def onnx(self) -> bytes:
        """The graph as the content of an ONNX file."""
        return to_onnx(self.program, self.graph, self.card)


@dataclass(frozen=True)
class Format:
    """One format of graphs.

    Attributes:
        suffix: Ending of the file's name.
        write: Writes a graph to a path.
        run: Returns the model in a file as a module, run by the format's own runtime.
        extra: Extra of this package that installs what is needed; "" for none.
        packages: Modules that are needed.
        tolerance: Largest allowed difference of a probability.
        pixels: Whether the preprocessing is inside, always or never; None if the user chooses.
        platform: Only value of `sys.platform` on which the file runs; "" for all.
        quantise: Writes a graph in 8 bits to a path, given inputs of (1, C, H, W) to calibrate with; None if it cannot.
    """

    suffix: str
    write: Callable[[Source, Path], None]
    run: Callable[[Path], nn.Module]
    extra: str = ""
    packages: tuple[str, ...] = ()
    tolerance: float = 1e-3
    pixels: bool | None = None
    platform: str = ""
    quantise: Callable[[Source, Path, Iterable[NDArray[Any]]], None] | None = None

    @property
    def runs_here(self) -> bool:
        """Whether the format's runtime exists for this machine."""
        return self.platform in ("", sys.platform)

    @property
    def installed(self) -> bool:
        """Whether all needed packages are there."""
        return all(find_spec(name) for name in self.packages)

    def require_installed(self, name: str) -> None:
        """Refuse a format whose packages are missing."""
        if not self.installed:
            raise UserError(
                f"--format {name} needs {', '.join(self.packages)}: install them with pip install "
                f"'paucal[{self.extra}]'."
            )


GRAPHS: dict[str, Format] = {
    "pt2": Format(
        ".pt2",
        lambda source, path: _write_content(path, pack_program(source.program, source.card)),
        lambda path: unpack_program(path.read_bytes()),
    ),
    "onnx": Format(
        ".onnx",
        lambda source, path: _write_content(path, source.onnx),
        lambda path: OnnxNetwork(path.read_bytes()),
        extra="onnx",
        packages=ONNX,
        quantise=lambda source, path, inputs: _write_content(path, quantise(source.onnx, source.graph.input, inputs)),
    ),
    "openvino": Format(
        ".xml",
        lambda source, path: openvino_model.write(source.onnx, source.card, path),
        openvino_model.OpenVinoNetwork,
        extra="openvino",
        packages=("openvino", "nncf", *ONNX[:2]),
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
        browser_page.run,
        extra="onnx",
        packages=ONNX,
        pixels=True,
    ),
}


def _write_content(path: Path, content: bytes) -> None:
    path.write_bytes(content)
