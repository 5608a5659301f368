"""`paucal eval` of a detector: the same scores again, and those on other images by the names of the classes."""

import csv
import json
import shutil
from pathlib import Path

import pytest

import paucal
from paucal.cli.main import main
from paucal.runs import RunFolder
from paucal.types import UserError
from tasks.detection.made import write_coco


def test_eval__of_the_test_images_is_what_the_run_found(finished: Path, tmp_path: Path, capsys):
    assert main(["eval", str(finished), "--output", str(tmp_path / "again")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert main(["eval", str(finished), "--output", str(tmp_path / "again")]) == 0  # and once more in the same place
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    first = RunFolder(finished).read_json("evaluation/detection/metrics.json")
    assert (again["scores"], again["intervals"], again["per_class"]) == (
        first["scores"],
        first["intervals"],
        first["per_class"],
    )
    assert again["images"] == first["images"]
    detections = [finished / "evaluation" / "detection", tmp_path / "again"]
    assert len({(folder / "detections.json").read_text() for folder in detections}) == 1
    assert f"AP {again['scores']['ap']:.3f}" in said
    assert (tmp_path / "again" / "precision_recall.png").stat().st_size > 1000


def test_eval__goes_by_the_names_of_classes_not_by_their_numbers(finished: Path, tmp_path: Path):
    same = write_coco(tmp_path / "same", 6, seed=5).parent
    turned = write_coco(tmp_path / "turned", 6, seed=5, numbers={"blue": 1, "red": 2}).parent
    found = [paucal.evaluate(finished, one, output=str(tmp_path / f"on {one.name}")) for one in (same, turned)]
    assert found[0].detection[0].images == 6
    assert found[0].metrics == found[1].metrics
    assert found[0].detection[0].per_class == found[1].detection[0].per_class
    assert found[0].score("detection").value == found[0].metrics["ap"]
    assert {one.score for one in found[0].findings} == {"ap", "ap50"}


def test_eval_and_predict__take_archives_and_annotation_files(finished: Path, tmp_path: Path, capsys):
    file = write_coco(tmp_path / "same", 6, seed=5)
    packed = shutil.make_archive(str(tmp_path / "same"), "zip", file.parent)
    places = [str(file.parent), packed, str(file)]
    found = [paucal.evaluate(finished, one, output=str(tmp_path / f"{n}")) for n, one in enumerate(places)]
    assert found[0].metrics == found[1].metrics == found[2].metrics
    answers = []
    for place in places:
        capsys.readouterr()
        assert main(["predict", str(finished), place, "--format", "json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert [Path(row["file_name"]).name for row in content["images"]] == [f"{n}.png" for n in range(6)]
        answers.append(content["annotations"])
    assert answers[0] == answers[1] == answers[2]


def test_eval__refuses_strange_classes_and_what_is_of_classifiers(finished: Path, tmp_path: Path):
    strange = write_coco(tmp_path / "strange", 4).parent
    file = strange / "_annotations.coco.json"
    file.write_text(file.read_text().replace('"red"', '"green"'))
    with pytest.raises(UserError, match="has boxes of 'green', which the detector does not know: its classes are"):
        paucal.evaluate(finished, strange, output=str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()
    with pytest.raises(UserError, match=r"--mirror is for classifiers.*is for detection"):
        paucal.evaluate(finished, mirror=True)
    with pytest.raises(UserError, match="--protocol is for classifiers and frozen features"):
        paucal.evaluate(finished, protocol=["classification"])


def test_eval__refuses_images_without_an_object(finished: Path, tmp_path: Path):
    write_coco(tmp_path / "set" / "train", 3, seed=5)
    file = write_coco(tmp_path / "set" / "test", 3, seed=6)
    file.write_text(json.dumps({**json.loads(file.read_text()), "annotations": []}))
    with pytest.raises(UserError, match="the detector cannot be evaluated, since there is no object in 3 images"):
        paucal.evaluate(finished, tmp_path / "set", output=str(tmp_path / "no"))


def test_eval__leaves_out_images_that_were_learned_from(finished: Path, images: Path, tmp_path: Path):
    with (finished / "split.csv").open() as file:
        own = {row["key"]: row["split"] for row in csv.DictReader(file)}
    shutil.copytree(images, tmp_path / "copy")
    for data in (images, tmp_path / "copy"):
        (found,) = paucal.evaluate(finished, data, output=tmp_path / "out").detection
        assert found.images == sum(part == "test" for part in own.values())
    more = write_coco(tmp_path / "more", 26).parent  # the first twenty are those of the run
    kept = 26 - sum(part in ("train", "val") for part in own.values())
    result = paucal.evaluate(finished, more, output=tmp_path / "out")
    assert result.detection[0].images == kept
    assert any(f"left out {26 - kept} of the 26 images" in text for text in result.said)


def test_eval__of_the_two_files_of_a_detector_alone(finished: Path, tmp_path: Path):
    (tmp_path / "alone").mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(finished / name, tmp_path / "alone" / name)
    others = write_coco(tmp_path / "others", 4, seed=8).parent
    models = (tmp_path / "alone", finished)
    found = [paucal.evaluate(model, others, output=tmp_path / "out").metrics for model in models]
    assert found[0] == found[1]
    with pytest.raises(UserError, match="does not name its training images: give DATA"):
        paucal.evaluate(tmp_path / "alone", output=tmp_path / "out")
