"""What other verbs do with a run of numbers and one of grades: the right values, or a sentence."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import paucal
from paucal.cli.main import main
from paucal.verbs.serve.app import make_app
from paucal.verbs.serve.picture_predictor import PicturePredictor
from tasks.regression.test_regression import bright_table, stored_start

of_numbers = pytest.mark.parametrize("run", ["level"], indirect=True)  # where a grade is a number like any other


@pytest.fixture(scope="module", params=["level", "grade"])
def run(request, tmp_path_factory):
    """A run of numbers, and one of four grades of brightness, of a table that has a class for each image too."""
    folder = tmp_path_factory.mktemp(request.param)
    table = bright_table(folder / "images")
    rows = list(csv.reader(table.read_text().splitlines()))
    brightness = [str(1 + int(float(row[1]) // 60)) if row[1] else "" for row in rows[1:]]
    grades = [["grade", "side"], *zip(brightness, itertools.cycle(["left", "right"]))]
    table.write_text("\n".join(",".join([*row, *grade]) for row, grade in zip(rows, grades, strict=True)))
    options = {"ordinal": True} if request.param == "grade" else {}
    start = stored_start(folder / "start")
    return paucal.train(table, target=request.param, output=folder / "run", init=str(start), **options)


def images(run) -> list[str]:
    return [str(path) for path in sorted((run.folder.parent / "images").glob("1?.png"))]


def numbers(rows) -> np.ndarray:
    return np.array([[row.predicted, row.low, row.high] for row in rows])


def test_predictions__are_grades_with_probabilities_or_numbers(run):
    rows = paucal.predict(run, images(run))
    columns = rows.to_arrow().column_names
    if run.report.scores.get("kappa") is None:
        assert columns == ["path", "predicted", "low", "high"]
        return
    assert columns == ["path", "predicted", "low", "high", "p_1", "p_2", "p_3", "p_4"]
    for row in rows:
        assert row.predicted in (1, 2, 3, 4)
        assert row.low <= row.predicted <= row.high
        assert sum(row.shares.values()) == pytest.approx(1)
        up_to = np.cumsum(list(row.shares.values()))
        assert row.predicted == 1 + np.searchsorted(up_to, 0.5)
    assert run.metrics["exact"] > 0.5
    assert run.metrics["kappa"] > 0.7
    assert run.metrics["coverage"] > 0.8
    page = (run.folder / "report.html").read_text()
    assert "quadratic weighted kappa" in page
    assert paucal.evaluate(run).metrics == pytest.approx(run.metrics)


def test_loaded_models__give_the_same_numbers(run):
    expected = numbers(paucal.predict(run, images(run)))
    model = paucal.load(run)
    assert model.classes == run.model.classes
    assert numbers(paucal.predict(model, images(run))) == pytest.approx(expected)
    outputs = model.probabilities([Image.open(path) for path in images(run)])
    assert np.stack(model.card.read(outputs[:, 0].double().numpy()), 1) == pytest.approx(expected)
    rows = paucal.predict(model, images(run)[:2], features=True)
    assert rows[0].features.shape == rows[1].features.shape
    assert not (rows[0].features == rows[1].features).all()


@pytest.mark.slow
def test_exports__give_the_same_numbers(run, tmp_path: Path, capsys):
    pytest.importorskip("onnxruntime", reason="runs exported models")
    made = paucal.export_model(run, format=["onnx"], output=str(tmp_path / "out"))
    assert set(made.comparisons) == {"model.onnx"}
    assert all(found.agreement == 1 and found.largest < 1e-3 for found in made.comparisons.values())
    assert "equal predictions, within a tenth of the target's standard deviation, for 100.0 %" in " ".join(made.said)
    assert "model.onnx" in (run.folder / "report.html").read_text()
    file = tmp_path / "out/model.onnx"
    assert numbers(paucal.predict(file, images(run))) == pytest.approx(
        numbers(paucal.predict(run, images(run))), abs=1e-2
    )
    assert main(["predict", str(file), images(run)[0]]) == 0
    assert capsys.readouterr().out.startswith("path,predicted,low,high")


def test_served_models__give_the_same_numbers(run):
    answerer = PicturePredictor(paucal.load(run), None)
    client = TestClient(make_app(answerer, "title", 10**7, None), base_url="http://localhost")
    content = Path(images(run)[0]).read_bytes()
    headers = {"content-type": "application/octet-stream"}
    answer = client.post("/api/classify?explain=1", content=content, headers=headers).json()
    (row,) = paucal.predict(run, images(run)[0])
    assert [answer[name] for name in ("predicted", "low", "high")] == pytest.approx([row.predicted, row.low, row.high])
    assert answer["says"].startswith(f"{run.model.classes[0]} {row.predicted:.3g} (")
    assert {int(one["name"]): one["probability"] for one in answer["classes"]} == pytest.approx(row.shares, abs=1e-4)
    assert [one["name"] for one in answer["classes"] if one["chosen"]] == [str(int(row.predicted))] * bool(row.shares)
    (drawn,) = answer["explanation"]["maps"]
    assert drawn["name"] == answer["says"]


@of_numbers
def test_explanations__are_of_the_number(run, tmp_path: Path):
    made = paucal.explain_images(run, images(run)[:2], output=str(tmp_path / "out"))
    assert [path.name for path in made.pictures] == ["10_attribution.png", "11_attribution.png", "sheet.png"]


@of_numbers
def test_a_classifier__may_start_from_the_weights_of_a_regression(run, tmp_path: Path, capsys):
    classes = run.folder.parent / "images/classes.csv"
    classes.write_text("image,label\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(60)))
    assert main(["train", str(classes), "--init", str(run.folder), "--print-config"]) == 0
    assert f"model: {run.model.card.backbone.name}" in capsys.readouterr().out


@of_numbers
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["next", "RUN", "IMAGES"], "predicts target values, which paucal next does not support"),
        (["eval", "RUN", "--protocol", "knn"], "frozen features are evaluated with classes: give DATA with classes"),
        (["label", "CLASSES", "--teacher", "RUN", "--output", "OUT"], "predicts a number"),
        (["explain", "RUN", "IMAGE", "--explain-class", "a"], "predicts a number"),
        (["export", "RUN", "--format", "html", "--output", "OUT"], "--format html is for classifiers"),
        (
            ["export", "RUN", "--format", "safetensors", "--output", "OUT"],
            "model.safetensors has these weights",
        ),
        (["export", "RUN", "--format", "hub", "--output", "OUT"], "is for classifiers that timm can build"),
        (["predict", "RUN", "IMAGE", "--top-k", "2"], "--top-k is for classifiers and detectors"),
        (["predict", "RUN", "clip.mp4", "--top-k", "2"], "--top-k is for classifiers and detectors"),
        (["predict", "RUN", "IMAGE", "--precision", "bf16-mixed"], "16 bits would round predicted numbers"),
        (
            ["serve", "RUN", "--label", "IMAGES", "--save", "OUT"],
            "but the labelling page only supports one class per image",
        ),
    ],
)
def test_verbs_of_classes__refuse_numbers_in_a_sentence(run, tmp_path: Path, capsys, arguments: list[str], words: str):
    photos = tmp_path / "photos"
    for name in ("a", "b"):
        (photos / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (32, 32), (number * 60, 0, 0)).save(photos / name / f"{number}.png")
    words_for = {
        "RUN": run.folder,
        "IMAGES": photos,
        "CLASSES": photos,
        "IMAGE": images(run)[0],
        "OUT": tmp_path / "out",
    }
    assert main([str(words_for.get(word, word)) for word in arguments]) == 2
    said = capsys.readouterr().err
    assert words in " ".join(said.split())
    assert not (tmp_path / "out").exists()


@of_numbers
def test_exported_numbers__are_no_labels(run, tmp_path: Path, capsys):
    paucal.export_model(run, format=["onnx"], output=tmp_path / "files")
    words = ["predict", tmp_path / "files/model.onnx", images(run)[0], "--to", "csv", "--output", tmp_path / "out"]
    assert main(list(map(str, words))) == 2
    assert "predicts target values, which --to does not support" in " ".join(capsys.readouterr().err.split())


@of_numbers
def test_frozen_features__are_judged_on_the_classes_of_the_same_table(run):
    table = run.folder.parent / "images/table.csv"
    found = paucal.evaluate(run, str(table), protocol=["knn"], label_column="side", test_fraction=0.2)
    assert found.score("knn").value >= 0


def test_check__says_what_numbers_a_table_has(run, capsys):
    table, column = run.folder.parent / "images/table.csv", run.model.classes[0]
    result = paucal.check(str(table), target=column)
    assert not result.misleads
    assert any(f"which paucal train --target {column} predicts" in finding.text for finding in result.findings)
    assert len(result.checked.images) == 58
    with pytest.raises(paucal.UserError, match="--target is for paucal train, but --verb is detect"):
        paucal.check(str(table), target=column, verb="detect")
    assert ("--ordinal predicts a grade" in " ".join(f.text for f in result.findings)) == (column == "grade")
