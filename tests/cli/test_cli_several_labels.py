"""Images with several labels, from a table to a model, its page, its answers and its refusals."""

import csv
import json
from collections import Counter

import pytest
import torch
from PIL import Image

import paucal
from cli.calls import QUICK, call, failure, table
from paucal.models.trained import load_trained
from paucal.runner.initial_weights import count_images_seen
from paucal.runs import RunFolder
from paucal.verbs.predict.answers import OutputBatch
from paucal.verbs.predict.writing import NO_CLASS, sheet_rows
from several_labels import COLOURS, make_set


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on 60 small images of coloured squares, beside them."""
    base = tmp_path_factory.mktemp("several")
    make_set(base / "squares", 60)
    words = [*QUICK, "--init", "none", "--method", "supervised"]
    assert call("train", base / "squares", *words, "--output", base / "run") == 0
    return base / "run"


def test_train__is_judged_by_mean_average_precision(run):
    told = json.loads((run / "summary.json").read_text())
    report = json.loads((run / "evaluation/test/metrics.json").read_text())
    assert report["kind"] == "multi-label"
    assert told["test_map"] == report["scores"]["map"]["value"]
    assert told["kept_val_map"] == max(float(row["val_map"]) for row in table(run / "metrics.csv"))
    assert any("one sigmoid per class" in remark for remark in told["remarks"])
    assert "iterative stratification" in told["split"]
    counts = Counter(row["split"] for row in table(run / "split.csv"))
    page = (run / "report.html").read_text()
    cells = "".join(f'<td class="number">{counts[part]}</td>' for part in ("train", "val", "test"))
    assert f'<th scope="row">images</th>{cells}' in page.replace("\n", "")
    epochs = float(told["epochs"])
    assert count_images_seen(RunFolder(run)) == epochs * counts["train"]
    assert "mean average precision" in page
    assert "majority" not in page
    assert not (run / "plots/confusion.png").exists()
    assert (run / "plots/precision_recall.png").read_bytes().startswith(b"\x89PNG")


def test_train__stores_thresholds_that_validation_images_have_chosen(run):
    card = json.loads((run / "model.json").read_text())
    assert card["format"] == 2
    assert len(card["thresholds"]) == 3
    report = json.loads((run / "evaluation/test/metrics.json").read_text())
    assert [row["threshold"] for row in report["per_class"]] == card["thresholds"]
    assert card["thresholds"] != [0.5] * 3


def test_eval__repeats_the_score_of_training(run, tmp_path):
    before = json.loads((run / "evaluation/test/metrics.json").read_text())
    assert call("eval", run, "--output", tmp_path / "again") == 0
    after = json.loads((tmp_path / "again/metrics.json").read_text())
    assert after["scores"]["map"]["value"] == pytest.approx(before["scores"]["map"]["value"], abs=1e-9)
    found = paucal.evaluate(run, run.parent / "squares", output=tmp_path / "named")  # its test images alone
    assert found.classification[0].report.images == after["images"]
    assert found.score("classification").value == found.metrics["map"]


def test_eval__judges_images_with_one_label_too(run, tmp_path):
    (tmp_path / "one.csv").write_text("image,label\n001.png,blue\n002.png,green\n004.png,red\n")
    make_set(tmp_path / "more", 5, seed=1)
    words = ["--data-root", tmp_path / "more", "--output", tmp_path / "one"]
    assert call("eval", run, tmp_path / "one.csv", *words) == 0
    report = json.loads((tmp_path / "one/metrics.json").read_text())
    assert [row["images"] for row in report["per_class"]] == [1, 1, 1]


def test_predict__gives_every_probability_and_the_labels_above_the_thresholds(run, capsys, tmp_path):
    output = tmp_path / "answers.csv"
    assert call("predict", run, run.parent / "squares", "--output", output) == 0
    with output.open() as file:
        rows = list(csv.DictReader(file))
    thresholds = load_trained(run).card.thresholds
    assert thresholds is not None
    assert len(rows) == 60
    for row in rows:
        shares = [float(row[f"p_{name}"]) for name in COLOURS]
        expected = [n for n, share, least in zip(COLOURS, shares, thresholds, strict=True) if share >= least]
        assert row["labels"] == ";".join(expected)
    assert {round(sum(float(row[f"p_{name}"]) for name in COLOURS), 2) for row in rows} != {1.0}
    capsys.readouterr()
    assert call("predict", run, run.parent / "squares/007.png", "--format", "json") == 0
    answer = json.loads(capsys.readouterr().out)[0]
    assert answer["labels"] == rows[7]["labels"].split(";") * bool(rows[7]["labels"])
    assert set(answer) == {"path", "labels", "probabilities"}


def test_predict__names_the_likeliest_and_sorts_the_sheet_by_every_answer(run, tmp_path):
    squares, sheet = run.parent / "squares", tmp_path / "s.jpg"
    words = ["--top-k", 2, "--output", tmp_path / "two.csv", "--sheet", sheet]
    assert call("predict", run, squares, *words) == 0
    rows = paucal.predict(run, squares)
    short = table(tmp_path / "two.csv")
    assert list(short[0]) == ["path", "labels", "class_1", "p_1", "class_2", "p_2"]
    assert [row["class_1"] for row in short] == [row.predicted for row in rows]
    card = load_trained(run).card
    names = [row.path for row in rows]
    block = OutputBatch(names, names, [None] * len(rows), torch.stack([row.shares for row in rows]))
    for heading, count, members in sheet_rows([block], card):
        shown = [(p, s) for p, row in enumerate(rows) for name, s in row.probabilities.items() if name == heading]
        meant = [p for p, row in enumerate(rows) if heading in (row.labels or [NO_CLASS])]
        assert count == len(meant)
        assert {place for place, _ in members} <= set(meant)
        assert heading == NO_CLASS or all((place, pytest.approx(share)) in shown for place, share in members)
        assert [share for _, share in members] == sorted((share for _, share in members), reverse=True)
    with Image.open(sheet) as page:
        assert page.format == "JPEG"


def test_check__knows_several_labels(run, capsys):
    found = paucal.check(run.parent / "squares", labels=False)
    assert not found.misleads
    assert found.facts["per_class"]["train"].keys() == COLOURS.keys()
    assert any("several labels" in one.text for one in found.findings)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "relabel", "--labels", "maps"], "needs one label per image"),
        (["--sampling", "balanced"], "--sampling balanced draws the same number of images from every class"),
        (["--few-labels", "3"], "--few-labels sets the number of images of each class"),
    ],
)
def test_train__refuses_what_needs_one_label(run, capsys, tmp_path, words, sentence):
    told = failure(
        capsys, "train", run.parent / "squares", *QUICK, "--init", "none", *words, "--output", tmp_path / "run"
    )
    assert sentence in told
    assert not (tmp_path / "run").exists()


def test_label__refuses_a_teacher_of_several_labels(run, capsys, tmp_path):
    told = failure(capsys, "label", run.parent / "squares", "--teacher", run, "--output", tmp_path / "maps")
    assert "predicts several labels per image" in told


def test_compare__refuses_images_with_several_labels_before_it_trains(run, capsys, tmp_path):
    words = ["--methods", "supervised", "drloc", "--seeds", "0", "--output", tmp_path / "grid"]
    told = failure(capsys, "compare", run.parent / "squares", *words)
    assert "these images have several labels each" in told
    assert not (tmp_path / "grid").exists()


def test_runs__lists_the_mean_average_precision(run):
    listed, told = paucal.list_runs(run)[0], json.loads((run / "summary.json").read_text())
    assert (listed.value("val"), listed.value("test")) == (told["kept_val_map"], told["test_map"])
