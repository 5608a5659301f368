"""Figures without content, for tests that do not look at them: making and drawing them takes most of a short run."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

REPLACED = (
    "paucal.evaluation.curves.Figure",
    "paucal.evaluation.plots.Figure",
    "paucal.evaluation.plots.render_png",
    "paucal.report.pictures.render_png",
    "paucal.tasks.classification.mistakes.mistakes_attribution_figure",
    "paucal.verbs.explain.writing.figure_to_bytes",
)


def leave_blank(replace: Callable[[str, object], None]) -> None:
    """Let paucal write blank figures; `replace` sets what has a dotted name, as `MonkeyPatch.setattr` does."""
    for name, value in zip(
        REPLACED, (Blank, Blank, blank_png, blank_png, lambda *_: Blank(), blank_bytes), strict=True
    ):
        replace(name, value)


def blank_png(figure: Any) -> bytes:
    """Return a black picture of a figure's size as PNG."""
    buffer = io.BytesIO()
    width, height = (round(side * 110) for side in figure.get_size_inches())
    Image.new("RGB", (width, height)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def blank_bytes(figure: Any, kind: str) -> bytes:
    """Return a figure of a model's explanation as PNG, or the first bytes of an SVG."""
    return blank_png(figure) if kind == "png" else b"<?xml"


class Blank:
    """A figure, its axes and what they draw at once: accepts every call and draws nothing."""

    lines = ()

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __getattr__(self, name: str) -> Any:
        """Return a method that returns this object."""
        if name.startswith("__"):  # numpy asks for its protocols
            raise AttributeError(name)
        return lambda *values, **options: self

    @property
    def xaxis(self) -> Any:
        """Return an axis of which the same holds."""
        return self

    def subplots(self, rows: int = 1, columns: int = 1, squeeze: bool = True, **options: Any) -> Any:
        """Return axes in the shape in which matplotlib's figures do."""
        axes = np.full((rows, columns), self, dtype=object)
        return axes if not squeeze else self if axes.size == 1 else axes.squeeze()

    def get_ylim(self) -> tuple[float, float]:
        """Return the range of values, which `health_figure` extends."""
        return 0.0, 1.0

    def get_size_inches(self) -> tuple[float, float]:
        """Return the width and height."""
        return self.options.get("figsize", (2.0, 2.0))
