import io

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from paucal.evaluation.classification import classification_report
from paucal.evaluation.curves import best_epoch, curves_figure, drawn_columns
from paucal.evaluation.plots import (
    Mistake,
    confusion_figure,
    mistakes_figure,
    per_class_figure,
    plot_label,
    reliability_figure,
    worst_mistakes,
)
from paucal.evaluation.predictions import Predictions

pytestmark = pytest.mark.usefixtures("drawn_pictures")


def predictions_of(labels, probabilities):
    logits = torch.tensor(probabilities).log()
    return Predictions(torch.arange(len(labels)) + 10, logits, torch.tensor(labels))


def save(figure):
    """Draw for real: warnings (errors here) appear only then."""
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    return figure


def test_confusion_figure__writes_counts_and_colours_by_share_of_the_row():
    figure = save(confusion_figure([[8, 2, 0], [1, 3, 0], [0, 0, 0]], ["cat", "dog", "unseen"]))
    axes = figure.axes[0]
    texts = {tuple(int(v) for v in t.get_position()): t.get_text() for t in axes.texts}
    assert texts == {(0, 0): "8", (1, 0): "2", (0, 1): "1", (1, 1): "3"}
    shares = axes.images[0].get_array()
    np.testing.assert_allclose(shares[:2], [[0.8, 0.2, 0], [0.25, 0.75, 0]])
    assert shares.mask[2].all()
    assert axes.get_xlabel() == "predicted class"
    assert axes.get_ylabel() == "true class"
    assert [t.get_text() for t in axes.get_yticklabels()] == ["cat", "dog", "unseen"]
    dark = {t.get_text() for t in axes.texts if to_hex(t.get_color()) == "#ffffff"}
    assert dark == {"8", "3"}


@pytest.mark.parametrize("n_classes", [100, 250])
def test_confusion_figure__names_do_not_overlap_with_many_classes(n_classes):
    figure = save(confusion_figure(np.eye(n_classes, dtype=int), [f"species {k}" for k in range(n_classes)]))
    axes = figure.axes[0]
    assert not axes.texts
    labels = [t for t in axes.get_yticklabels() if t.get_text()]
    assert 50 < len(labels) <= 100
    boxes = [label.get_window_extent() for label in labels[:2]]
    assert boxes[1].y1 <= boxes[0].y0 + 0.15 * boxes[0].height


def test_confusion_figure__refuses_names_that_do_not_match():
    with pytest.raises(ValueError, match=r"\(2, 2\) counts"):
        confusion_figure([[1]], ["a", "b"])


def test_shorten__cuts_joins_lines_and_disarms_mathematics():
    assert plot_label("x" * 30) == "x" * 19 + "…"
    assert plot_label("two\nlines") == "two lines"
    assert plot_label("caf\udce9") == "caf?"
    save(confusion_figure([[1, 0], [0, 1]], ["$\\bad{", "5$"]))


def test_reliability_figure__bars_are_accuracies_of_their_bins():
    rows = [[0.9, 0.1]] * 4 + [[0.6, 0.4]] * 2 + [[1.0, 0.0]]
    figure = save(reliability_figure(predictions_of([0, 0, 0, 1, 1, 0, 0], rows)))
    upper, lower = figure.axes
    bars = {round(bar.get_x() * 15): bar.get_height() for bar in upper.patches}
    assert bars == {13: pytest.approx(0.75), 9: pytest.approx(0.5), 14: 1.0}  # certainty joins the last bin
    counts = {round(bar.get_x() * 15): bar.get_height() for bar in lower.patches if bar.get_height()}
    assert counts == {13: 4, 9: 2, 14: 1}


def test_per_class_figure__is_sorted_and_shows_the_intervals():
    labels = [0] * 4 + [1] * 5 + [3] * 2
    answers = [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1]
    rows = np.eye(4)[answers] * 0.9 + 0.025
    report = classification_report(predictions_of(labels, rows.tolist()), ["cat", "dog", "unseen", "emu"])
    axes = save(per_class_figure(report)).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["emu (2)", "cat (4)", "dog (5)"]
    points, _, bars = axes.containers[0]
    np.testing.assert_allclose(points.get_xdata(), [0, 0.75, 1])
    recall = report.per_class[0].recall
    np.testing.assert_allclose(bars[0].get_segments()[1][:, 0], [recall.low, recall.high])
    assert any(line.get_label() == "all images: 72.7 %" for line in axes.lines)
    assert "95 % interval" in axes.get_xlabel()


def test_per_class_figure__keeps_the_lowest_of_many_classes():
    labels = list(range(120))
    answers = [k if k % 2 else 0 for k in labels]
    rows = np.eye(120)[answers] * 0.5 + 0.5 / 120
    report = classification_report(predictions_of(labels, rows.tolist()), [f"c{k:03d}" for k in labels])
    axes = save(per_class_figure(report)).axes[0]
    assert len(axes.get_yticks()) == 100
    assert axes.get_title(loc="left") == "the 100 lowest of 120 classes"
    assert axes.containers[0][0].get_xdata()[:59].max() == 0


ROWS = [
    {
        "epoch": 1,
        "train_loss": 3.0,
        "train_class": 2.0,
        "train_drloc": 0.5,
        "weight_drloc": 0.5,
        "lr": 1e-3,
        "val_loss": 1.5,
        "val_top1": 0.4,
        "val_balanced_accuracy": 0.3,
        "skipped_steps": 0,
        "gradient_norm": 1.0,
    },
    {
        "epoch": 2,
        "train_loss": 2.0,
        "train_class": 1.0,
        "train_drloc": 0.25,
        "weight_drloc": 0.5,
        "lr": 2e-3,
        "val_loss": 1.0,
        "val_top1": 0.6,
        "val_balanced_accuracy": 0.5,
        "skipped_steps": 0,
        "gradient_norm": 2.0,
    },
    {
        "epoch": 3,
        "train_loss": 1.0,
        "train_class": 0.5,
        "train_drloc": 0.2,
        "lr": 0.0,
        "val_loss": 1.2,
        "val_top1": 0.6,
    },
]


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes}


def data(axes, label):
    line = next(line for line in axes.lines if line.get_label() == label)
    return line.get_xydata().tolist()


def test_curves_figure__each_column_is_in_its_panel():
    shown = panels(save(curves_figure(ROWS)))
    assert list(shown) == [
        "validation scores",
        "validation loss",
        "training loss, weighted sum",
        "training: class",
        "training: drloc",
        "learning rate",
        "gradient norm",
    ]
    assert data(shown["validation scores"], "top-1") == [[1, 0.4], [2, 0.6], [3, 0.6]]
    assert data(shown["validation scores"], "balanced accuracy") == [[1, 0.3], [2, 0.5]]
    assert data(shown["training: drloc"], "drloc") == [[1, 0.5], [2, 0.25], [3, 0.2]]
    assert data(shown["learning rate"], "lr") == [[1, 1e-3], [2, 2e-3], [3, 0.0]]
    assert {axes.get_xlabel() for axes in shown.values()} == {"epoch"}
    assert shown["validation scores"].get_ylabel() == "fraction of images"


def test_curves_figure__names_the_units_of_a_detector():
    shown = panels(curves_figure([{"val_ap": 0.2, "val_ap50": 0.4, "val_mask_ap": 0.1, "val_missed": 0.5}]))
    assert {title: axes.get_ylabel() for title, axes in shown.items()} == {
        "validation scores": "average precision",
        "missed objects": "fraction of objects",
    }
    assert data(shown["missed objects"], "missed") == [[1, 0.5]]


def test_curves_figure__marks_the_best_epoch_and_chance():
    shown = panels(save(curves_figure(ROWS, chance={"val_top1": 0.25, "train_drloc": 1 / 3})))
    assert data(shown["validation loss"], "best epoch (2)")[0][0] == 2  # a tie in top-1: the lower loss
    chance = next(line for line in shown["validation scores"].lines if line.get_label() == "top-1, by chance")
    assert set(chance.get_ydata()) == {0.25}
    assert chance.get_linestyle() == "--"
    assert [y for _, y in data(shown["training: drloc"], "drloc, by chance")] == [1 / 3, 1 / 3]
    given = panels(curves_figure(ROWS, best=1))
    assert data(given["validation loss"], "best epoch (1)")[0][0] == 1


def test_curves_figure__one_epoch_is_visible_and_its_axis_whole():
    axes = panels(save(curves_figure(ROWS[:1])))["validation loss"]
    assert axes.lines[0].get_marker() == "o"
    low, high = axes.get_xlim()
    assert all(tick == int(tick) for tick in axes.get_xticks() if low <= tick <= high)


def test_curves_figure__survives_gaps_and_numbers_that_are_not_finite():
    rows = [
        {"train_loss": float("nan")},
        {"train_loss": float("inf"), "val_top1": float("nan")},
        {"val_top1": 0.5},
    ]
    shown = panels(save(curves_figure(rows)))
    assert data(shown["validation scores"], "best epoch (3)")[0][0] == 3


def test_curves_figure__nothing_to_draw_is_an_error():
    assert drawn_columns([{"epoch": 1, "seconds": 3, "weight_drloc": 1.0}]) == []
    with pytest.raises(ValueError, match="got 1 rows without"):
        curves_figure([{"epoch": 1}])


def test_best_epoch__is_none_without_validation():
    assert best_epoch([{"epoch": 1, "train_loss": 2.0}]) is None
    assert best_epoch([{"val_top1": 0.5}, {"val_top1": 0.7}, {"val_top1": 0.6}]) == 2


def test_worst_mistakes__are_the_most_confident_errors():
    rows = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.99, 0.01], [0.1, 0.9]]
    predictions = predictions_of([1, 0, 1, 0, 0], rows)
    found = worst_mistakes(predictions, 3)
    assert [(m.id, m.true, m.predicted) for m in found] == [(10, 1, 0), (14, 0, 1), (11, 0, 1)]
    assert [m.confidence for m in found] == pytest.approx([0.9, 0.9, 0.8])
    assert len(worst_mistakes(predictions, 100)) == 4


def test_mistakes_figure__shows_each_image_with_its_answer():
    images = [Image.new("L", (8, 6), 200), Image.new("RGB", (5, 5), (255, 0, 0))]
    mistakes = [Mistake(3, 0, 1, 0.987), Mistake(4, 1, 0, 0.5)]
    figure = save(mistakes_figure(images, mistakes, ["cat", "dog"]))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "predicted: dog, 99 %\nlabel: cat",
        "predicted: cat, 50 %\nlabel: dog",
    ]
    assert figure.axes[0].images[0].get_array().shape == (6, 8, 3)
    assert figure.axes[1].images[0].get_array()[0, 0].tolist() == [255, 0, 0]
    with pytest.raises(ValueError, match="got 2 and 1"):
        mistakes_figure(images, mistakes[:1], ["cat", "dog"])


def test_figures__leave_pyplot_alone():
    from matplotlib import pyplot

    curves_figure(ROWS)
    assert pyplot.get_fignums() == []
