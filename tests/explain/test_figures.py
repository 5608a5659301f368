"""Figures: what is written on them, and that nothing lies outside or over each other."""

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from paucal.backbones.attention_layout import Tokens
from paucal.explain.features import Correspondence
from paucal.explain.figures.attention import maps_figure, matrices_figure, tokens_figure
from paucal.explain.figures.attribution import AttributedImage, contact_sheet
from paucal.explain.figures.cells import MatchedPair, OffsetView, matches_figure, offsets_figure
from paucal.verbs.explain.cells import mirror_match_mask

PICTURE = np.full((40, 60, 3), 0.5, dtype=np.float32)


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


@pytest.mark.parametrize(("is_class_specific", "said"), [(True, "cat, 70%"), (False, "for any class")])
def test_sheet__names_the_class_where_there_is_one(is_class_specific: bool, said: str) -> None:
    one = AttributedImage("a.jpg", PICTURE, torch.rand(1, 2, 3), ("cat",), (0.7,))
    assert titles(contact_sheet([one, one], "a method", is_class_specific)) == ["a.jpg", said] * 2


def offsets(predicted: tuple[float, float]) -> Figure:
    true = torch.tensor([[[0.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [0.0, 0.0]]])
    found = true.clone()
    found[0, 1] = torch.tensor(predicted)
    return offsets_figure(PICTURE, OffsetView(found, true, (1, 2), signed=True), (0, 0), (0, 1))


def test_offsets__beyond_the_picture_are_inside_of_their_panel() -> None:
    figure = offsets((-0.6, 0.5))  # in a grid of 1x2: 24 pixels up, 15 to the right
    panel = figure.axes[0]
    ends = [arrow._posA_posB for arrow in panel.patches if isinstance(arrow, FancyArrowPatch)]
    np.testing.assert_allclose(ends, [[(44.5, 19.5), (14.5, 19.5)], [(44.5, 19.5), (59.5, -4.5)]], atol=1e-5)
    assert panel.get_xlim() == pytest.approx((-0.5, 59.5 + 0.03 * 60))
    assert panel.get_ylim() == pytest.approx((39.5, -4.5 - 0.03 * 40))


def test_offsets__far_away_leave_the_picture_its_room() -> None:
    panel = offsets((-50.0, 50.0)).axes[0]
    assert (panel.get_xlim(), panel.get_ylim()) == ((-0.5, 90.0), (39.5, -20.0))


def test_matches__of_one_cell_share_a_number_and_lie_above_the_lines() -> None:
    first = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 2], [1, 2]])
    second = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 2], [1, 1]])
    marks = torch.zeros(2, 2, dtype=torch.long)
    found = Correspondence(first, second, torch.ones(5), ((2, 3), (2, 3)), marks, marks)
    figure = matches_figure([MatchedPair((PICTURE, PICTURE), found)], show_cosines=True)
    numbers = [text for text in figure.texts if text.get_text()[0].isdigit()]
    assert [text.get_text() for text in numbers] == ["1", "2", "3", "4", "5", "1-3, 5", "4"]
    assert [text.get_position() for text in numbers[-2:]] == [(29.5, 29.5), (49.5, 9.5)]
    assert min(text.zorder for text in numbers) > max(one.zorder for one in figure.artists if hasattr(one, "xy1"))


def test_mirror__tells_which_pairs_are_right() -> None:
    first, second = torch.tensor([[0, 0], [1, 2], [0, 1]]), torch.tensor([[0, 3], [1, 2], [0, 2]])
    marks = torch.zeros(2, 2, dtype=torch.long)
    found = Correspondence(first, second, torch.ones(3), ((2, 4), (2, 4)), marks, marks)
    assert mirror_match_mask(found).tolist() == [True, False, True]


def test_tokens__of_an_unsure_model_can_be_seen_and_say_how_sure_it_is() -> None:
    shares = torch.tensor([[[0.3, 0.1]], [[0.2, 0.5]]])  # two classes, 1x2 cells
    figure = tokens_figure(PICTURE, [("student", shares)], ["cat", "dog"])
    assert titles(figure) == ["image", "student\nprobability 30% to 50%"]
    painted = np.asarray(figure.axes[1].images[-1].get_array())
    np.testing.assert_allclose(painted[0, :, 3], [0.45, 0.55], atol=1e-6)
    assert not np.allclose(painted[0, 0, :3], painted[0, 1, :3])


def test_tokens__of_every_class_have_a_colour_that_grey_pictures_show() -> None:
    shares = torch.eye(10)[:, None]  # ten classes, 1x10 cells
    figure = tokens_figure(PICTURE, [("student", shares)], [str(number) for number in range(10)])
    colours = np.asarray(figure.axes[1].images[-1].get_array())[0, :, :3]
    assert len({tuple(colour) for colour in colours.tolist()}) == 10
    assert (colours.max(1) - colours.min(1)).min() > 0.2


def test_classes_of_imagenet__are_named_by_words() -> None:
    shares = torch.tensor([[[0.3, 0.1]], [[0.2, 0.5]]])
    figure = tokens_figure(PICTURE, [("student", shares)], ["n03680355", "n99999999"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Loafer", "n99999999"]


def test_matrices__of_many_tokens_are_large_enough_for_a_column_of_each() -> None:
    few, many = (Tokens((side, side), ("class",), ("head 1", "head 2")) for side in (4, 16))
    for tokens, dots in ((few, 10.0), (many, 1.3)):
        figure = matrices_figure([torch.rand(len(tokens), len(tokens))] * 4, tokens, ["a"] * 4)
        figure.dpi = 110
        FigureCanvasAgg(figure).draw()
        assert figure.axes[0].get_window_extent().width / len(tokens) > dots


def test_maps__name_the_image_too() -> None:
    assert titles(maps_figure(PICTURE, [torch.rand(2, 3)], ["rollout"], "note")) == ["image", "rollout"]
