"""Figures without content, for tests that do not look at them."""

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from PIL import Image


def leave_blank(replace: Callable[[str, object], None]) -> None:
    """Let paucal write blank figures; `replace` sets what has a dotted name, as `MonkeyPatch.setattr` does."""
    replace("paucal.evaluation.plots._png_bytes", blank_png)
    replace("paucal.evaluation.curves.Figure", curves_figure)


def blank_png(figure: Any) -> bytes:
    """Return a black picture of a figure's size as PNG."""
    buffer = io.BytesIO()
    width, height = (round(side * 110) for side in figure.get_size_inches())
    Image.new("RGB", (width, height)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def curves_figure(**options: Any) -> Any:
    """Return a figure whose panels draw nothing: each takes 10 ms to make, and a run has twenty of them."""
    from matplotlib.figure import Figure

    def subplots(rows: int, columns: int, squeeze: bool) -> Any:
        return SimpleNamespace(flat=[AnyAxes() for _ in range(rows * columns)])

    figure: Any = Figure(**options)
    figure.subplots = subplots
    return figure


class AnyAxes:
    """Axes that accept every call and draw nothing."""

    lines = ()

    def __getattr__(self, name: str) -> Any:
        """Return a method that returns these axes."""
        return lambda *values, **options: self

    @property
    def xaxis(self) -> Any:
        """Return an axis of which the same holds."""
        return self

    def get_ylim(self) -> tuple[float, float]:
        """Return the range of values, which `health_figure` extends."""
        return 0.0, 1.0
