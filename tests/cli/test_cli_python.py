"""The verbs called from Python: the numbers, files and sentences of the command line, and nothing printed."""

import csv
import inspect
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import paucal
from cli.calls import call, failure, table
from fuzz.flags import flag_names
from paucal.settings.options import flag
from paucal.types import UserError
from paucal.wording import percent

TINY: dict[str, Any] = {"img_size": 16, "workers": 0, "model": "vit_mini", "model_args": "depth=1", "seed": 1}
SMALL: dict[str, Any] = {**TINY, "epochs": 1, "batch_size": 12, "out_dim": 16, "hidden_dim": 32, "local_crops": 1}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def words_of(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def stored(file: Path) -> Any:
    return json.loads(file.read_text())


def test_train__gives_the_run_of_the_command(trained, tmp_path, capsys):
    lists = {"img_size": [16], "model_args": ["depth=1"]}
    run = paucal.train(trained / "photos", epochs=2, output=tmp_path / "run", **{**TINY, **lists})
    assert capsys.readouterr() == ("", "")
    report = stored(trained / "run/evaluation/test/metrics.json")
    assert run.metrics == {name: score["value"] for name, score in report["scores"].items()}
    assert run.report.to_dict() == report
    assert run.folder == run.run == Path(run) == tmp_path / "run"
    without_time = [{k: v for k, v in row.items() if k != "seconds"} for row in run.history]
    rows = table(trained / "run" / "metrics.csv")
    assert without_time == [{k: float(v) for k, v in row.items() if v and k != "seconds"} for row in rows]
    assert run.model.classes == ("class0", "class1", "class2")
    assert run.model is run.model
    assert paucal.load(run).card == run.model.card
    weights = "model.safetensors"
    assert (run.folder / weights).read_bytes() == (trained / "run" / weights).read_bytes()


def test_pretrain__gives_the_run_of_the_command(trained, tmp_path, capsys):
    words = words_of(SMALL)
    assert call("pretrain", trained / "photos", *words, "--output", tmp_path / "command") == 0
    capsys.readouterr()
    run = paucal.pretrain(trained / "photos", output=tmp_path / "python", **SMALL)
    assert capsys.readouterr() == ("", "")
    row = {k: float(v) for k, v in table(tmp_path / "command" / "metrics.csv")[-1].items() if v}
    assert {**run.metrics, "seconds": 0} == {**row, "seconds": 0}
    assert run.model.classes == ()
    tuned = paucal.train(trained / "photos", init=run, epochs=1, seed=1, output=tmp_path / "tuned")
    assert stored(tuned.folder / "init.json")["share"] > 0.9


def test_resume__goes_on_with_a_stopped_run(trained, tmp_path):
    folder, weights = tmp_path / "run", "model.safetensors"
    with pytest.raises(UserError, match=f"stopped after step .*resume with: paucal train --resume {folder}"):
        paucal.train(trained / "photos", epochs=2, output=folder, time_limit="0.01s", **TINY)
    with pytest.raises(UserError, match="remove --seed"):
        paucal.train(resume=folder, seed=4)
    run = paucal.train(resume=folder, time_limit="1h")
    assert (run.folder / weights).read_bytes() == (trained / "run" / weights).read_bytes()


def test_evaluate__gives_the_report_of_the_command(trained, tmp_path, capsys):
    assert call("eval", trained / "run", trained / "photos", "--output", tmp_path / "command") == 0
    printed = capsys.readouterr().out
    found = paucal.evaluate(trained / "run", trained / "photos", output=tmp_path / "python")
    assert capsys.readouterr() == ("", "")
    report = stored(tmp_path / "command" / "metrics.json")
    assert found.classification[0].report.to_dict() == report == stored(tmp_path / "python" / "metrics.json")
    assert found.classification[0].folder == tmp_path / "python"
    assert found.metrics["top1"] == found.score().value == report["scores"]["top1"]["value"]
    assert {one.score for one in found.findings} == report["scores"].keys()
    assert found.said[-1].startswith("photos: accuracy")
    assert found.said[-1].split(";")[0] in printed
    assert found.frozen is None


def test_evaluate__gives_the_table_of_the_command(trained, tmp_path, capsys):
    settings = {"bootstrap": 50, "seed": 1, "max_images": 30}
    words = ["--protocol", "classification", "knn", *words_of(settings)]
    run = tmp_path / "run"
    run.symlink_to(trained / "run")
    assert call("eval", run, *words, "--output", tmp_path / "command") == 0
    printed = capsys.readouterr().out
    found = paucal.evaluate(run, protocol=["knn", "classification"], output=tmp_path / "python", **settings)
    command, python = (stored(tmp_path / name / "results.json") for name in ("command", "python"))
    assert command == python
    assert found.frozen is not None
    assert [row.to_dict() for row in found.frozen.rows] == command["rows"]
    shown = [row for row in command["rows"] if row["headline"]]
    values = [score["value"] for row in shown for score in row["scores"].values()]
    assert [one.value for one in found.findings if one.protocol == "knn"] == values
    assert found.score("knn").value == values[0]
    assert f"{100 * values[0]:.1f} [" in printed
    assert {one.model for one in found.findings} == {str(run), "random weights"}
    assert found.score().value == stored(tmp_path / "python" / "metrics.json")["scores"]["top1"]["value"]
    with pytest.raises(KeyError, match="was not evaluated by 'linear'"):
        found.score("linear")


def test_evaluate__puts_several_models_beside_the_first(trained, tmp_path):
    run, settings = trained / "run", {"protocol": "knn", "bootstrap": 50, "output": tmp_path / "out"}
    other = tmp_path / "other"
    other.symlink_to(run)
    found = paucal.evaluate(run, compare=[other, run], **settings)
    names = [str(run), str(other), f"{run} (2)", "random weights"]
    assert [one.model for one in found.findings] == names
    (row,) = [row for row in found.frozen.rows if row.line.headline]
    assert list(row.gains) == names[1:]
    assert [row.gains[name].value for name in names[1:3]] == [0.0, 0.0]
    assert row.gains["random weights"].value == row.scores[str(run)].value - row.scores["random weights"].value
    alone = paucal.evaluate(run, compare=other, **{**settings, "output": tmp_path / "alone"})
    assert list(alone.frozen.rows[0].scores) == [str(run), str(other), "random weights"]


def test_predict__gives_the_rows_of_the_command(trained, capsys):
    photos = trained / "photos"
    sources = [photos / "class0" / "0.png", photos / "class1", str(photos / "class2" / "1*.png")]
    assert call("predict", trained / "run", *sources) == 0
    printed = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    rows = paucal.predict(trained / "run", sources)
    assert capsys.readouterr() == ("", "")
    assert [(row.path, row.predicted, f"{row.confidence:.6g}") for row in rows] == [
        (row["path"], row["predicted"], row["confidence"]) for row in printed
    ]
    for row, text in zip(rows, printed, strict=True):
        assert {f"p_{name}": f"{share:.6g}" for name, share in row.probabilities.items()} == {
            name: value for name, value in text.items() if name.startswith("p_")
        }
        assert row.probabilities[row.predicted] == row.confidence == max(row.probabilities.values())


def test_predict__takes_a_loaded_model_and_pictures(trained):
    model, path = paucal.load(trained / "run"), trained / "photos" / "class1" / "3.png"
    of_file, of_picture = paucal.predict(model, [path, Image.open(path)])
    assert (of_file.path, of_picture.path) == (str(path), None)
    assert of_file.probabilities == of_picture.probabilities
    assert paucal.predict(model, Image.open(path))[0].predicted == of_file.predicted
    with pytest.raises(UserError, match="but the model is already loaded on cpu: remove --device"):
        paucal.predict(model, path, device="cpu")
    with pytest.raises(UserError, match="there are no images to classify"):
        paucal.predict(model, [])


def test_predict__warns_of_what_it_leaves_out(trained, tmp_path, caplog):
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    (tmp_path / "whole.png").write_bytes((trained / "photos" / "class1" / "3.png").read_bytes())
    with caplog.at_level(logging.WARNING, "paucal"):
        rows = paucal.predict(trained / "run", tmp_path, on_bad_image="skip")
    assert [row.path for row in rows] == [str(tmp_path / "whole.png")]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith("skipped: ")
    assert "broken.jpg" in caplog.messages[0]


def test_label__gives_the_maps_of_the_command(labelled, tmp_path, capsys):
    made = paucal.label(labelled / "photos", teacher=labelled / "teacher", output=tmp_path / "maps", img_size=64)
    assert capsys.readouterr() == ("", "")
    for name in ("values.npy", "indices.npy"):
        assert np.array_equal(np.load(tmp_path / "maps" / name), np.load(labelled / "maps" / name)), name
    assert (made.folder, made.images, made.facts.grid, made.facts.top) == (tmp_path / "maps", 36, (8, 8), 3)
    assert made.check is not None
    whole = f"the teacher is correct for {percent(made.check.image_accuracy)} of {made.check.images} labelled images"
    cells = f"the class with the highest mean in its map for {percent(made.check.map_accuracy)}"
    assert made.said[0] == f"teacher: {labelled / 'teacher'}; {whole}, {cells}"


MISTAKES: list[tuple[Callable[..., Any], tuple, dict[str, Any]]] = [
    (paucal.train, ("digits",), {"epochs": "many"}),
    (paucal.train, ("digits",), {"epochs": 0}),
    (paucal.train, ("digits",), {"drloc_mode": "l2"}),
    (paucal.train, ("digits",), {"method": "drlok"}),
    (paucal.train, ("nowhere/",), {}),
    (paucal.pretrain, ("digits",), {"out_dim": 1}),
    (paucal.pretrain, ("digits",), {"on_collapse": "cry"}),
    (paucal.evaluate, ("nowhere",), {}),
    (paucal.evaluate, ("vit_mini", "digits"), {"protocol": "knn", "bootstrap": 1}),
    (paucal.evaluate, ("vit_mini", "digits"), {"protocol": "knn", "device": "tpu9", "img_size": 16}),
    (paucal.evaluate, ("vit_mini",), {"protocol": "knn"}),
    (paucal.evaluate, ("vit_mini",), {"protocol": "nkk"}),
    (paucal.predict, ("nowhere", "x.png"), {}),
    (paucal.predict, ("nowhere", "x.png"), {"batch_size": 0}),
    (paucal.label, ("digits",), {"output": "maps"}),
    (paucal.label, ("digits",), {"teacher": "vit_mini"}),
    (paucal.label, ("digits",), {"output": "maps", "teacher": "nobody"}),
    (paucal.label, ("digits",), {"output": "maps", "teacher": "nobody", "top_k": 0}),
]


@pytest.mark.parametrize(("function", "words", "settings"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_mistake__is_the_sentence_of_the_command(function, words, settings, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    verb = {"evaluate": "eval"}.get(function.__name__, function.__name__)
    sentence = failure(capsys, verb, *words, *words_of(settings)).removeprefix("error: ")
    with pytest.raises(UserError) as error:
        function(*words, **settings)
    assert str(error.value) == sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "words", "mistyped", "meant"),
    [
        (paucal.train, ("digits",), "bacth_size", "batch_size"),
        (paucal.pretrain, (), "epoch", "epochs"),
        (paucal.evaluate, ("runs/1",), "protocols", "protocol"),
        (paucal.predict, ("runs/1", "x"), "devise", "device"),
        (paucal.label, ("digits",), "teecher", "teacher"),
    ],
)
def test_keyword__that_is_unknown_is_answered_with_the_nearest(function, words, mistyped, meant):
    with pytest.raises(TypeError) as error:
        function(*words, **{mistyped: 1})
    assert str(error.value).startswith(f"paucal.{function.__name__} has no setting {mistyped!r} (did you mean {meant}")


@pytest.mark.parametrize(
    ("function", "verb", "files"),
    [
        (paucal.evaluate, "eval", {"--output"}),
        # What the command writes into files is in the rows that Python is given; videos and --watch go on without end.
        (
            paucal.predict,
            "predict",
            {"--output", "--top-k", "--sheet", "--pictures", "--to", "--every", "--annotated", "--watch", "--idle"},
        ),
        (paucal.label, "label", {"--output"}),
    ],
)
def test_keywords__are_the_flags_of_the_verb(function, verb, files):
    shown = inspect.signature(function).parameters.values()
    keywords = {flag(one.name) for one in shown if one.kind is one.KEYWORD_ONLY}
    # Only a DataFrame has a column to name.
    assert keywords - {"--image"} | files == {*flag_names(verb)} - {"--help", "--format"}
