"""The pictures and sentences of a comparison show what lies in its runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from paucal.verbs.compare._figures import curves_figure
from paucal.verbs.compare.report import CHOSEN, LAST, SOME, describe_selection

pytestmark = pytest.mark.usefixtures("drawn_pictures")


def findings(*curves: list[float]) -> Any:
    runs = {seed: SimpleNamespace(rows=[{"epoch": place, "val_top1": y} for place, y in enumerate(curve, start=1)])
            for seed, curve in enumerate(curves)}  # fmt: skip
    return SimpleNamespace(arms=[SimpleNamespace(name="way", outcomes=runs)])


@pytest.mark.parametrize(
    ("scores", "said"), [([0.5, 0.6], CHOSEN), ([None, None], LAST), ([0.5, None], SOME), ([], CHOSEN)]
)
def test_page__says_by_what_epochs_were_chosen(scores, said):
    outcomes = {seed: SimpleNamespace(validation=score) for seed, score in enumerate(scores)}
    found: Any = SimpleNamespace(arms=[SimpleNamespace(outcomes=outcomes)])
    assert describe_selection(found) == said


@pytest.mark.parametrize(("curves", "mark"), [(([0.2], [0.4]), "o"), (([0.2, 0.3], [0.4, 0.5]), "")])
def test_curves__of_a_single_epoch_are_dots_since_a_line_of_one_place_shows_nothing(curves, mark):
    figure = curves_figure(findings(*curves))
    assert figure is not None
    *runs, mean = figure.axes[0].lines
    assert [line.get_marker() for line in (*runs, mean)] == [mark] * 3
    assert [list(line.get_ydata()) for line in runs] == [[100 * y for y in curve] for curve in curves]
    assert next(iter(mean.get_ydata())) == pytest.approx(30)
