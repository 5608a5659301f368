"""Figures as PNG pictures, laid out once."""

import io
import warnings
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from paucal.runs import write_atomically

DOTS_PER_INCH = 110


def png_of(figure: Figure) -> bytes:
    """Return a figure as PNG; its layout is fixed afterwards."""
    with warnings.catch_warnings():
        # Class names in scripts that matplotlib's font lacks show as boxes; the tables have them in full.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        return _drawn(figure)


def _drawn(figure: Figure) -> bytes:
    """Draw a figure.

    matplotlib draws a figure that has a layout engine twice and lays it out each time, which is most of the time that a
    figure takes. Laid out beforehand it is drawn once, with the same pixels.
    """
    figure.set_dpi(DOTS_PER_INCH)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        # None means the engine of the user's own settings, where they name one.
        with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
            figure.set_layout_engine(None)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, atomically."""
    data = png_of(figure)
    write_atomically(path, lambda file: file.write(data))
