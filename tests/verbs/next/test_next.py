"""`paucal next`: what is chosen and left out, and labels that go out and come back."""

import csv
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import paucal
from cli.calls import QUICK, SMALL, call, failure, make_photos, make_scenes, table
from paucal.data.boxes.opening import read_boxes
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.sources.opening import open_images
from paucal.models.trained import load_trained
from tasks.detection.made import pictures, write_voc

NAMES = ("a, b.png", "été.png", "猫 1.png", "plain.png", 'quo"te.png', "üñ;x.png")
TOOLS = ("label-studio", "cvat", "csv", "folders")


def make_unlabelled(root: Path, seed: int = 7) -> Path:
    """Make images of each class with odd names, in two folders."""
    photos = make_photos(root / "made", classes=3, each=4, seed=seed)
    (root / "unlabelled" / "in, here").mkdir(parents=True)
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        folder = root / "unlabelled" / ("in, here" if number % 2 else ".")
        file.rename(folder / f"{number} {NAMES[number % len(NAMES)]}")
    return root / "unlabelled"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("next")
    photos = make_photos(root / "photos")
    assert call("train", photos, *QUICK, "--output", root / "run") == 0
    make_unlabelled(root)
    return root


def test_rows__have_the_answer_of_the_model_and_are_spread(base: Path) -> None:
    rows = paucal.next_images(base / "run", base / "unlabelled", count=6, random_share=0.34).rows
    assert [row.by for row in rows] == ["choice"] * 4 + ["random"] * 2
    model = load_trained(base / "run")
    for row in rows:
        shares = model.probabilities([Image.open(row.path)])[0]
        assert row.label == model.classes[int(shares.argmax())]
        first, second = shares.topk(2).values.tolist()
        assert row.unsure == pytest.approx(1 - (first - second), abs=1e-3)
        assert row.label in row.reason
        assert ("drawn at random" in row.reason) == (row.by == "random")
    assert len({row.path for row in rows}) == 6


def test_images_of_the_run_and_copies__are_left_out(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base / "unlabelled", tmp_path / "all")
    train = next((base / "photos" / "class0").glob("*.png"))
    shutil.copy(train, tmp_path / "all" / "seen.png")
    first = next(path for path in sorted((tmp_path / "all").glob("*.png")) if path.name != "seen.png")
    shutil.copy(first, tmp_path / "all" / "zz twin.png")
    pixels = np.asarray(Image.open(train)).copy()
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(tmp_path / "all" / "near.png")
    found = paucal.next_images(base / "run", tmp_path / "all", count=100)
    names = {Path(row.path).name for row in found.rows}
    assert not names & {"seen.png", "zz twin.png", "near.png"}
    assert len(names) == 12
    assert [line for line in found.said if line.startswith("left out")] == [
        "left out: 1 image whose labels the run has used",
        "left out: 1 image that looks like an image of the run",
        "left out: 1 image that looks like another unlabelled image",
    ]
    kept = paucal.next_images(base / "run", tmp_path / "all", count=100, copies="keep")
    assert {"zz twin.png", "near.png"} <= {Path(row.path).name for row in kept.rows}


@pytest.mark.parametrize("to", TOOLS)
def test_answers_of_a_classifier__go_out_and_corrected_labels_come_back(base: Path, tmp_path: Path, to: str) -> None:
    found = paucal.next_images(base / "run", base / "unlabelled", count=12, to=to, folder=str(tmp_path / "out"))
    answers = {pixels_of(row.path): row.label for row in found.rows}
    if to == "label-studio":
        document = json.loads((tmp_path / "out" / "tasks.json").read_text())
        assert all("annotations" not in task for task in document)
        for task in document:  # as Label Studio exports them once a person has looked at each
            made = task["predictions"][0]
            assert made["model_version"] == "run"
            assert 0 < made["score"] <= 1
            task["annotations"] = [{"id": task["id"], "was_cancelled": False, "result": made["result"]}]
        first = document[0]["annotations"][0]["result"][0]
        corrected = {**first, "value": {"choices": ["class2"]}}
        document[0]["annotations"][0]["result"] = [corrected]
        (tmp_path / "out" / "tasks.json").write_text(json.dumps(document, ensure_ascii=False))
        answers[pixels_of(found.rows[0].path)] = "class2"
    back = open_images(tmp_path / "out")
    assert {np.asarray(back.store.read(n)).tobytes(): back.classes_of(n)[0] for n in range(len(back))} == answers


@pytest.mark.parametrize("to", TOOLS)
def test_class_that_the_model_does_not_know__comes_back_as_one_more_class(base: Path, tmp_path: Path, to: str) -> None:
    found = paucal.next_images(base / "run", base / "unlabelled", count=4, to=to, folder=str(tmp_path / "out"))
    give_first_image_another_class(tmp_path / "out", to, "scarf, wool & silk")
    back = open_images(f"{base / 'photos'}:{tmp_path / 'out'}")
    assert back.classes == ("class0", "class1", "class2", "scarf, wool & silk")
    new = [n for n in range(len(back)) if back.classes_of(n) == ["scarf, wool & silk"]]
    assert len(new) == 1
    assert np.asarray(back.store.read(new[0])).tobytes() in {pixels_of(row.path) for row in found.rows}
    assert len(back) == 36 + 4


def give_first_image_another_class(folder: Path, to: str, name: str) -> None:
    """Change one label as a person does in the tool of a layout."""
    if to == "label-studio":
        document = json.loads((folder / "tasks.json").read_text())
        for task in document:
            task["annotations"] = task.pop("predictions")
        document[0]["annotations"][0]["result"][0]["value"]["choices"] = [name]
        (folder / "tasks.json").write_text(json.dumps(document))
    elif to == "cvat":
        tree = ElementTree.parse(folder / "annotations.xml")
        tag = next(tree.iter("tag"))
        label = ElementTree.SubElement(next(tree.iter("labels")), "label")  # the tool lists every class
        ElementTree.SubElement(label, "name").text = name
        tag.set("label", name)
        tree.write(folder / "annotations.xml", encoding="utf-8")
    elif to == "csv":
        file = next(folder.glob("*.csv"))
        rows = table(file)
        rows[0]["label"] = name
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        image = next(file for file in sorted(folder.rglob("*")) if file.is_file())
        (folder / name).mkdir()
        image.rename(folder / name / image.name)
        if not any(image.parent.iterdir()):
            image.parent.rmdir()


def pixels_of(path: str) -> bytes:
    return np.asarray(Image.open(path).convert("RGB")).tobytes()


def test_list__is_a_table_to_train_on(base: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("next", base / "run", base / "unlabelled", "--count", 12, "--output", "next.csv", "--sheet", "next.png")
    assert call(*words) == 0
    rows = table(Path("next.csv"))
    assert rows[0].keys() == {"image_path", "label", "unsure", "chosen_by", "reason"}
    images = open_images("next.csv")
    assert [images.classes_of(n)[0] for n in range(12)] == [row["label"] for row in rows]
    joined = open_images(f"{base / 'photos'}:next.csv")
    assert len(joined) == 36 + 12
    assert joined.classes == ("class0", "class1", "class2")
    assert np.asarray(Image.open("next.png")).shape[1] > 1000


def test_detector__is_asked_and_its_boxes_come_back(tmp_path: Path) -> None:
    write_voc(tmp_path / "boxes", 6)
    words = ("--model", "test_resnet", "--init", "none", "--img-size", "64", "--steps", "1", "-b", "2", "-j", "0")
    assert call("detect", tmp_path / "boxes", *words, "--output", tmp_path / "run") == 0
    (tmp_path / "more").mkdir()
    for number, (image, _) in enumerate(pictures(5, seed=9)):
        image.save(tmp_path / "more" / f"{number} ä.png")
    card = json.loads((tmp_path / "run" / "model.json").read_text())
    found = paucal.next_images(tmp_path / "run", tmp_path / "more", count=3)
    assert len(found.rows) == 3
    expected = {row.path: row for row in paucal.detect_objects(tmp_path / "run", str(tmp_path / "more"))}
    for row in found.rows:
        scores = expected[row.path].found.scores
        doubts = sorted((4 * scores * (1 - scores)).tolist(), reverse=True)[:3]
        assert row.unsure == pytest.approx(np.mean(doubts) if doubts else 0, abs=1e-3)
    for to in ("coco", "yolo", "voc", "csv", "label-studio", "cvat"):
        paucal.next_images(tmp_path / "run", tmp_path / "more", count=5, to=to, folder=str(tmp_path / to))
        assert len(list((tmp_path / to).rglob("*.png"))) == 5
        if to in ("coco", "cvat", "csv"):  # hold images without objects
            _, back = read_boxes(tmp_path / to)
            assert len(back.images) == 5

    assert set(json.loads((tmp_path / "coco/annotations/instances_default.json").read_text())["categories"][0]) == {
        "id",
        "name",
    }
    assert card["classes"] == ["blue", "red"]


def test_segmenter__is_asked_and_its_masks_come_back(tmp_path: Path) -> None:
    scenes = make_scenes(tmp_path / "scenes", 8)
    words = ("--crops", "1", "--epochs", "1", "--seed", "1")
    assert call("segment", scenes, *SMALL, *words, "--output", tmp_path / "run") == 0
    more = make_scenes(tmp_path / "others", 4, seed=5) / "images"
    found = paucal.next_images(tmp_path / "run", more, count=4, to="masks", folder=str(tmp_path / "out"))
    model = paucal.load_segmenter(tmp_path / "run")
    for row in found.rows:
        shares = model.probabilities(Image.open(row.path)).flatten(1).T
        lead = torch.diff(shares.topk(2, dim=1).values.flip(1))[:, 0]
        assert row.unsure == pytest.approx(float((1 - lead).mean()), abs=1e-3)
    pairs = find_pairs(tmp_path / "out")
    masked = read_masks(images_of_pairs(pairs, "out"), pairs)
    for number, key in enumerate(masked.images.keys):
        answer = model.mask(Image.open(more / Path(key).name))
        assert masked.masks.read(number).tolist() == answer.tolist()
    for to in ("label-studio", "cvat", "coco"):
        paucal.next_images(tmp_path / "run", more, count=4, to=to, folder=str(tmp_path / to))
        if to == "label-studio":  # a person takes over the predictions
            tasks = json.loads((tmp_path / to / "tasks.json").read_text())
            for one in tasks:
                one["annotations"] = one.pop("predictions")
            (tmp_path / to / "tasks.json").write_text(json.dumps(tasks))
        paucal.convert(tmp_path / to, to="masks", output=tmp_path / f"{to} back")
        back = find_pairs(tmp_path / f"{to} back")
        corrected = read_masks(images_of_pairs(back, to), back)
        names = corrected.images.classes  # those that some image shows
        number_of = np.asarray([names.index(name) if name in names else -1 for name in model.classes])
        for number, key in enumerate(corrected.images.keys):
            answer = model.mask(Image.open(more / Path(key).name))
            assert corrected.masks.read(number).tolist() == number_of[answer].tolist()


def test_mistakes__are_one_sentence(base: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    run, data = base / "run", base / "unlabelled"
    for words, sentence in (
        (("--to", "csv"), "--to and --folder must be given together: give --folder"),
        (("--folder", "out"), "--to and --folder must be given together: give --to"),
        (("--to", "yolo", "--folder", "out"), "--to yolo stores boxes"),
        (("--output", "list.json"), "give a name that ends in .csv"),
        (("--sheet", "sheet.gif"), "must end in .png"),
        (("--count", "0"), "--count is 0"),
        (("--folder", data / "out", "--to", "csv"), "is inside the images"),
    ):
        assert sentence in failure(capsys, "next", run, data, *words)
        assert list(tmp_path.iterdir()) == []
    assert "nothing to label" in failure(capsys, "next", run, base / "photos")
    assert "does not exist" in failure(capsys, "next", run, base / "none")
