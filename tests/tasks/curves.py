"""Curves that are made and not rendered, for runs whose other figures are drawn."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from blank_figures import blank_png
from paucal.writing import write_atomically


@contextmanager
def unrendered_curves(fast_tier: bool) -> Iterator[None]:
    """Write blank pictures of the curves in the fast tier.

    A run draws them twice, in most of the time of its figures. The tests of `curves_figure` render them.
    """
    with pytest.MonkeyPatch.context() as patch:
        if fast_tier:
            patch.setattr("paucal.report.pictures.render_png", blank_png)
            patch.setattr("paucal.evaluation.curves.save_figure", save_blank)
        yield


def save_blank(path, figure) -> None:
    write_atomically(path, lambda file: file.write(blank_png(figure)))
