"""Numbers as targets: the fit, its intervals, a run, its files, predictions, and what is refused."""

import csv
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

import paucal
from paucal.backbones import BackboneSpec
from paucal.cli.main import main
from paucal.data.sources.opening import open_images
from paucal.methods.training_settings import TrainSettings
from paucal.metrics.measures import value_of
from paucal.metrics.regression import conformal_half_width, r2, regression_report, root_mean_square
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.regression import IntervalPredictions
from paucal.models.trained import save_trained
from paucal.report.regression import headline_sentences, score_rows
from paucal.runs import RunFolder
from paucal.tasks.regression.evaluation import format_regression_score, interval_text, write_scores
from paucal.tasks.regression.fitting import fit_ridge
from paucal.tasks.regression.images import grades_note, read_targets, split_images_with_targets
from paucal.types import UserError


def test_scores__are_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    truth = generator.normal(50, 10, 40)
    predicted = truth + generator.normal(0, 4, 40)
    ends = predicted - 6, predicted + 6
    report = regression_report(truth, predicted, ends, mean=50.0, level=0.9, seed=0, graded=False)
    assert report.half_width == pytest.approx(6)
    assert report.values["mae"] == pytest.approx(mean_absolute_error(truth, predicted))
    assert report.values["rmse"] == pytest.approx(root_mean_squared_error(truth, predicted))
    assert report.values["r2"] == pytest.approx(r2_score(truth, predicted))
    assert report.values["coverage"] == np.mean(np.abs(truth - predicted) <= 6)
    assert report.gain.value == pytest.approx(np.abs(truth - 50).mean() - report.values["mae"])
    low, high = report.scores["mae"].ends
    assert low < report.values["mae"] < high
    assert report.gain.excludes_zero
    # Weights are counts of images.
    twice = np.r_[truth, truth[:10]], np.r_[predicted, predicted[:10]]
    weights = np.r_[np.full(10, 2.0), np.ones(30)][None]
    assert r2(truth, predicted)(weights)[0] == pytest.approx(r2_score(*twice))
    assert value_of(root_mean_square(np.array([3.0, 4.0])), 2) == pytest.approx(math.sqrt(12.5))
    assert math.isnan(value_of(r2(np.ones(3), np.zeros(3)), 3))


def test_scores__of_groups_are_resampled_whole():
    generator, copies = np.random.default_rng(0), np.repeat(np.arange(40), 4)
    truth = generator.normal(50, 10, 40)
    predicted = truth + generator.normal(0, 4, 40)

    def report(rows, groups):
        ends = predicted[rows] - 6, predicted[rows] + 6
        return regression_report(truth[rows], predicted[rows], ends, 50.0, 0.9, 0, graded=False, groups=groups)

    once, grouped, naive = report(np.arange(40), None), report(copies, copies), report(copies, None)
    assert (grouped.images, grouped.groups, once.groups) == (160, 40, None)
    for name in ("mae", "rmse", "r2"):
        assert grouped.scores[name].ends == pytest.approx(once.scores[name].ends)
        assert np.diff(naive.scores[name].ends) < 0.7 * np.diff(once.scores[name].ends)
    assert grouped.gain.ends == pytest.approx(once.gain.ends)
    assert grouped.scores["coverage"].ends == pytest.approx(once.scores["coverage"].ends, abs=0.02)


def test_r2__of_few_images_has_an_interval_that_ignores_draws_of_one_number():
    truth = np.array([0.1, 0.7, 0.3])  # the mean of three times 0.1 is not exactly 0.1
    scores = regression_report(truth, truth + 0.05, (truth, truth + 0.1), 0.4, 0.9, seed=0, graded=False).scores
    assert 0 < scores["r2"].ends[0] <= scores["r2"].value
    assert math.isnan(value_of(r2(np.full(10, 0.1), np.zeros(10)), 10))


@pytest.mark.usefixtures("drawn_pictures")
def test_scores__of_one_image_have_no_interval_and_are_valid_json(tmp_path):
    truth, numbers = np.array([0.5]), IntervalPredictions(np.array([0.6]), np.array([0.1]), np.array([1.1]))
    report = regression_report(truth, numbers.predicted, (numbers.low, numbers.high), 0.4, 0.9, seed=0, graded=False)
    write_scores(tmp_path, tmp_path, report, SimpleNamespace(keys=["a.png"]), np.array([0]), truth, numbers)  # type: ignore[arg-type]
    text = (tmp_path / "metrics.json").read_text()
    assert "NaN" not in text
    content = json.loads(text)
    assert content["scores"]["r2"]["value"] is None
    assert score_rows(content["scores"])[2]["value"] == "undefined"
    assert "These images do not show that the model is better than always predicting the mean." in headline_sentences(
        content
    )
    assert format_regression_score(report.scores["r2"], "r2") == ("undefined", "")
    assert interval_text("", report) == "1 image"
    assert interval_text("1 to 2", replace(report, images=12)) == "95 % interval 1 to 2, 12 images"


def test_intervals__hold_as_many_numbers_as_they_say():
    """Over 40 draws of 60 training and 400 further images; both ends of the band were set beforehand."""
    generator, held = np.random.default_rng(0), []
    for _ in range(40):
        features = generator.normal(size=(460, 8))
        targets = features[:, 0] * 5 + generator.standard_t(4, 460) * 3 + 20
        fitted = fit_ridge(features[:60], targets[:60])
        half = conformal_half_width(fitted.residuals, 0.9)
        held.append((np.abs(fitted.predict(features[60:]) - targets[60:]) <= half).mean())
    assert 0.88 <= np.mean(held) <= 0.93


def test_ridge__finds_a_linear_function_and_shrinks_noise():
    generator = np.random.default_rng(0)
    features = generator.normal(3, 2, (400, 6))
    targets = 100 + 7 * features[:, 2] - 2 * features[:, 4]
    fitted = fit_ridge(features, targets)
    assert fitted.strength == 100
    assert fitted.weight[[2, 4]] == pytest.approx([7, -2], rel=0.25)
    assert fitted.predict(features).mean() == pytest.approx(targets.mean())
    noise = fit_ridge(features, generator.normal(50, 10, 400))
    assert noise.strength >= 1000
    assert noise.predict(features).std() < 1


def test_ridge__a_feature_that_is_nearly_constant_throws_no_prediction():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 20))
    features[:, 3] = generator.normal(0, 1e-4, 60)
    targets = features[:, 0] + generator.normal(0, 0.5, 60)
    features[0, 3] = 1e-3
    odd = features[:1].copy()
    odd[0, 3] = 1.0
    assert abs(fit_ridge(features, targets).predict(odd)[0]) < 3


def bright_table(folder, rows=60, seed=0):
    """Write images of different brightness, and a table with their brightness, two of them unknown."""
    generator = np.random.default_rng(seed)
    folder.mkdir()
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "level", "patient"])
        for number in range(rows):
            level = generator.uniform(20, 235)
            pixels = np.clip(generator.normal(level, 15, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
            writer.writerow([f"{number}.png", "" if number in (3, 9) else f"{level:.2f}", number // 2])
    return folder / "table.csv"


def stored_start(folder, name="test_resnet"):
    """Store a small network with random weights as a run does; return the folder."""
    torch.manual_seed(0)
    spec = BackboneSpec(name, 2, image_size=(64, 64))
    fed = Preprocessing((64, 64), 1.0, "bicubic", (0.5,) * 3, (0.25,) * 3)
    folder.mkdir()
    save_trained(RunFolder(folder), spec.build().model, ModelCard(spec, ("a", "b"), fed))
    return folder


@pytest.mark.usefixtures("drawn_pictures")
def test_run__predicts_numbers_with_intervals(tmp_path, capsys):
    table, start = bright_table(tmp_path / "images"), stored_start(tmp_path / "start")
    run = paucal.train(table, target="level", output=tmp_path / "run", init=str(start), group_by="patient")
    assert run.metrics["mae"] < 0.5 * run.report.baseline
    assert run.metrics["r2"] > 0.7
    rows = list(csv.DictReader((run.folder / "evaluation/test/predictions.csv").read_text().splitlines()))
    errors = [abs(float(row["predicted"]) - float(row["target"])) for row in rows]
    assert np.mean(errors) == pytest.approx(run.metrics["mae"], rel=1e-6)
    assert float(rows[0]["high"]) - float(rows[0]["low"]) == pytest.approx(2 * run.report.half_width, rel=1e-6)
    card = json.loads((run.folder / "model.json").read_text())
    assert (card["task"], card["classes"]) == ("regression", ["level"])
    page = (run.folder / "report.html").read_text()
    assert "a prediction is off by" in page
    assert f"{run.report.images} test images in {run.report.groups} groups" in page
    assert "data:image/png" in page
    image = tmp_path / "images" / rows[0]["key"]
    (one,) = paucal.predict(run, image)
    assert one.predicted == pytest.approx(float(rows[0]["predicted"]), abs=1e-3)
    assert one.high - one.predicted == pytest.approx(run.report.half_width)
    assert main(["predict", str(run.folder), str(image)]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header == "path,predicted,low,high"
    assert float(line.split(",")[1]) == pytest.approx(one.predicted, rel=1e-6)
    labelled = ["--to", "csv", "--output", str(run.folder.parent / "labelled")]
    assert main(["predict", str(run.folder), str(image), *labelled]) == 2
    assert "this model predicts target values" in capsys.readouterr().err
    (run.folder / "summary.json").unlink()  # as if it had been stopped
    again = paucal.train(resume=run.folder)
    assert again.metrics == run.metrics


def test_run__is_evaluated_on_its_own_and_on_other_images(tmp_path):
    table, start = bright_table(tmp_path / "images"), stored_start(tmp_path / "start")
    run = paucal.train(table, target="level", output=tmp_path / "run", init=str(start), group_by="patient")
    judged = paucal.evaluate(run)
    assert judged.metrics == pytest.approx(run.metrics, rel=1e-6)
    assert [finding.score for finding in judged.findings] == ["mae", "rmse", "r2", "coverage"]
    assert judged.score("regression").ends == run.report.scores["mae"].ends
    with pytest.raises(UserError, match="--mirror is for classifiers"):
        paucal.evaluate(run, mirror=True)
    same = paucal.evaluate(run, table, output=tmp_path / "same")  # its own images: the test images alone
    assert same.metrics == pytest.approx(run.metrics, rel=1e-6)
    assert (tmp_path / "same/predicted.png").exists()
    other = bright_table(tmp_path / "others", rows=12, seed=1)
    found = paucal.evaluate(run, other)
    assert found.regression[0].report.images == 10
    rows_of_other = {row["path"]: row for row in map(vars, paucal.predict(run, tmp_path / "others"))}
    table_rows = list(csv.DictReader((found.regression[0].folder / "predictions.csv").read_text().splitlines()))
    for row in table_rows:
        asked = rows_of_other[str(tmp_path / "others" / row["key"])]
        assert float(row["predicted"]) == pytest.approx(asked["predicted"], abs=1e-3)
    truth, told = (np.array([float(row[name]) for row in table_rows]) for name in ("target", "predicted"))
    assert found.metrics["rmse"] == pytest.approx(root_mean_squared_error(truth, told), rel=1e-6)
    other.write_text(other.read_text().replace("level", "height", 1))
    with pytest.raises(UserError, match="has no column 'level'; the columns are 'height', 'patient'"):
        paucal.evaluate(run, other)


def test_numbers__are_read_and_missing_ones_left_out(tmp_path):
    images = open_images(bright_table(tmp_path / "images"), labelled=False)
    kept, targets = read_targets(images, "level")
    assert len(kept) == len(targets) == 58
    assert "2 rows without a number in 'level' were left out" in kept.notes
    assert kept.keys[3] == "4.png"
    assert targets[3] == float(images.columns["level"][4])
    with pytest.raises(UserError, match="has no column 'age'; the columns are 'level', 'patient'"):
        read_targets(images, "age")


@pytest.mark.parametrize("group_by", [None, "patient"])
def test_split__is_not_said_to_be_cut_by_classes(tmp_path, group_by):
    images = open_images(str(bright_table(tmp_path / "images")), labelled=False)
    split = split_images_with_targets(TrainSettings("digits", group_by=group_by), images, None)
    assert ", cut at random (seed 0)" in split.description
    assert "class" not in split.description


def test_words__are_refused(tmp_path):
    table = bright_table(tmp_path / "images")
    table.write_text(table.read_text().replace("\n1.png,", "\n1.png,about "))
    with pytest.raises(UserError, match=r"'level' is 'about .*' for '1.png', expected a number"):
        read_targets(open_images(table, labelled=False), "level")


def test_grades__are_said_to_be_possible_classes():
    assert "whole numbers 1 to 4" in grades_note(np.array([1.0, 2, 3, 4, 4, 1]), "grade")[0]
    assert grades_note(np.array([1.0, 2, 4]), "grade") == []
    assert grades_note(np.array([1.0, 1.5, 2]), "grade") == []
    assert grades_note(np.arange(13.0), "grade") == []


@pytest.mark.parametrize(("name", "value"), [("epochs", 3), ("mixup", 0.2), ("method", "drloc"), ("time", "5m")])
def test_settings_of_training__are_refused(tmp_path, name, value):
    with pytest.raises(UserError, match=f"--{name} is not supported with --target"):
        paucal.train(bright_table(tmp_path / "images"), target="level", output=tmp_path / "run", **{name: value})


def test_cross_validation__does_not_take_a_target(tmp_path):
    with pytest.raises(UserError, match="--target is not supported for comparisons and folds"):
        paucal.cross_validate(bright_table(tmp_path / "images"), target="level", output=tmp_path / "run")


@pytest.mark.parametrize(
    ("residuals", "expected"), [(np.arange(1.0, 20.0), 18.0), (-np.arange(1.0, 10.0), 9.0), (np.arange(8.0), math.inf)]
)
def test_half_width__is_a_rank_of_the_errors(residuals, expected):
    assert conformal_half_width(residuals, 0.9) == expected
