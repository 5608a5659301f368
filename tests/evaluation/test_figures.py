"""Figures as PNG: what matplotlib draws, drawn once."""

import io

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from paucal.evaluation.plots import DOTS_PER_INCH, render_png, save_figure

pytestmark = pytest.mark.usefixtures("drawn_pictures")


def figure(layout: str | None) -> Figure:
    drawn = Figure(figsize=(5, 3), layout=layout)
    for place, axes in enumerate(drawn.subplots(1, 2)):
        axes.plot(np.arange(10) ** (place + 1), label="a line")
        axes.set(title="a title\nof two lines", xlabel="steps", ylabel="values that are large")
        axes.legend()
    return drawn


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("layout", ["constrained", None])
def test_png__has_the_pixels_that_matplotlib_draws(layout):
    plain = io.BytesIO()
    figure(layout).savefig(plain, format="png", dpi=DOTS_PER_INCH)
    assert np.array_equal(pixels(render_png(figure(layout))), pixels(plain.getvalue()))


@pytest.mark.parametrize("setting", ["figure.autolayout", "figure.constrained_layout.use"])
def test_png__is_the_same_whatever_layout_the_user_has_set(setting):
    drawn, other = figure("constrained"), figure("constrained")
    for one in (drawn, other):  # a bar of colours fits one engine alone
        one.colorbar(one.axes[0].scatter([1], [1], c=[1]), ax=one.axes[0])
    with rc_context({setting: True}):
        found = render_png(other)
    assert np.array_equal(pixels(found), pixels(render_png(drawn)))


def test_png__is_drawn_and_laid_out_once(monkeypatch):
    drawn = figure("constrained")
    calls = []
    engine, draw = drawn.get_layout_engine(), Figure.draw
    assert engine is not None
    execute = engine.execute
    monkeypatch.setattr(engine, "execute", lambda one: (calls.append("layout"), execute(one)))
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: (calls.append("draw"), draw(self, renderer)))
    render_png(drawn)
    assert calls == ["layout", "draw"]


def test_names__in_scripts_that_the_font_lacks_warn_nobody(tmp_path):
    drawn = Figure()
    drawn.text(0.5, 0.5, "\u732b")
    save_figure(tmp_path / "picture.png", drawn)
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.size == (704, 528)
