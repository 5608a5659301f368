"""Pre-training leaves out what others test with, and whoever is judged says what pre-training has seen."""

import csv
import json
import shutil
from pathlib import Path

import pytest

import paucal
from paucal.cli.main import main
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.tasks.pretraining.assembly import load_unlabelled
from tasks.pretraining.short_runs import StopAfter, start, summary_of


def lay_out(pictures: Path, root: Path, place) -> Path:
    """Copy the pictures to where `place` puts the picture of a number."""
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        file = root / place(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, file)
    return root


def in_parts(part: str, other: str = "train"):
    """Every third picture lies in a part, the others in another one, in two classes."""
    return lambda n: f"{other if n % 3 else part}/{('a', 'b')[n // 3 % 2]}/{n:02}.png"


def left_out(run: Path) -> set[str]:
    with (run / "split.csv").open(newline="") as file:
        return {row["key"] for row in csv.DictReader(file) if row["split"] == "unused"}


def stop_soon(data: Path, tmp_path: Path):
    return start(data, tmp_path / "run", callbacks=[StopAfter(1)]).run


def test_val_folder__beside_a_train_folder_is_left_out_as_it_is_tested_with(pictures, tmp_path):
    run = stop_soon(lay_out(pictures, tmp_path / "data", in_parts("val")), tmp_path)
    assert left_out(run) == {in_parts("val")(number) for number in range(0, 24, 3)}
    words = "images: data, 16 to learn from (the 8 images of the declared val part, reserved for testing, are left out"
    assert words in " ".join((run / "train.log").read_text().split())


def test_val_folder__beside_a_test_folder_is_learned_from(pictures, tmp_path):
    where = {0: "test", 1: "val", 2: "train"}
    data = lay_out(pictures, tmp_path / "data", lambda n: f"{where[n % 3]}/a/{n:02}.png")
    assert {key.split("/")[0] for key in left_out(stop_soon(data, tmp_path))} == {"test"}


@pytest.mark.parametrize("more", ["loose.png", "unlabelled/more.png"])
def test_test_folder__is_left_out_whatever_lies_beside_it(more, pictures, tmp_path):
    data = lay_out(pictures, tmp_path / "data", in_parts("test"))
    (data / more).parent.mkdir(exist_ok=True)
    shutil.copy(next(pictures.rglob("*.png")), data / more)
    assert left_out(stop_soon(data, tmp_path)) == {in_parts("test")(number) for number in range(0, 24, 3)}


def test_class_folder__that_is_called_test_is_none(pictures, tmp_path):
    data = lay_out(pictures, tmp_path / "data", lambda n: f"{('test', 'control')[n % 2]}/{n:02}.png")
    assert left_out(stop_soon(data, tmp_path)) == set()


@pytest.mark.parametrize("beside", [False, True], ids=["in the folder of paths", "below it"])
def test_lists__of_test_images_are_left_out_of_every_set(beside, pictures, tmp_path):
    """As DomainNet has them: lists of several domains, of which one has a val list in place of a test list."""
    place = lambda n: f"{('real', 'clipart', 'sketch')[n % 3]}/{('a', 'b')[n // 3 % 2]}/{n:02}.png"  # noqa: E731
    top = lay_out(pictures, tmp_path / "data", place)
    parts = {
        ("real", "train"): (0, 3),
        ("real", "test"): (6, 9),
        ("clipart", "train"): (1,),
        ("clipart", "val"): (4, 7),
    }
    parts |= {("sketch", "train"): (2,), ("sketch", "val"): (5,), ("sketch", "test"): (8,)}
    folder = top / "real" if beside else top
    for (name, part), numbers in parts.items():
        lines = [f"./{place(n)}" + ("" if part == "test" else f" {n % 2}") for n in numbers]
        (folder / f"{name}_{part}.txt").write_text("\n".join(lines) + "\n")
    (folder / "about_test.txt").write_text("These are pictures.\n")
    images = load_unlabelled(PretrainSettings(data=str(folder)))
    held = {key for key, part in zip(images.keys, images.declared_splits, strict=True) if part == "test"}
    numbers = (6, 9) if beside else (6, 9, 4, 7, 8)
    assert held == {place(number).removeprefix("real/" if beside else "") for number in numbers}
    assert len(images) == (8 if beside else 24)
    if not beside:
        assert left_out(stop_soon(folder, tmp_path)) == held


def test_val_list__beside_the_train_list_that_is_learned_from_is_left_out(pictures, tmp_path):
    place = lambda n: f"{('a', 'b')[n % 2]}/{n:02}.png"  # noqa: E731
    data = lay_out(pictures, tmp_path / "data", place)
    for part, numbers in (("train", range(16)), ("val", range(16, 20))):
        (data / f"set_{part}.txt").write_text("".join(f"{place(n)} {n % 2}\n" for n in numbers))
    assert left_out(stop_soon(data / "set_train.txt", tmp_path)) == {place(n) for n in range(16, 20)}


def test_list_of_test_images__that_is_damaged_is_refused(pictures, tmp_path, capsys):
    data = lay_out(pictures, tmp_path / "data", lambda n: f"a/{n:02}.png")
    (data / "set_test.txt").write_text("a/00.png\nnot a path\n")
    assert main(["pretrain", str(data), "--output", str(tmp_path / "run")]) == 2
    assert "line 2 of" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_eval__says_how_many_test_images_the_pretraining_has_seen(pictures, tmp_path, capsys):
    """The folder had no parts when it was learned from; later lists made some, of images by other keys."""
    place = lambda n: f"{('a', 'b')[n % 2]}/{n:02}.png"  # noqa: E731
    data = lay_out(pictures, tmp_path / "data", place)
    shutil.copy(data / place(23), tmp_path / "new.png")
    (data / place(23)).unlink()
    first = start(data, tmp_path / "first", epochs=1).run
    shutil.copy(tmp_path / "new.png", data / place(23))
    for part, numbers in (("train", range(12)), ("test", range(12, 24))):
        (tmp_path / f"set_{part}.txt").write_text("".join(f"data/{place(n)} {n % 2}\n" for n in numbers))
    tuned = paucal.train(
        tmp_path / "set_train.txt", init=str(first), method="supervised", epochs=1, output=str(tmp_path / "tuned")
    ).run
    assert (
        "the initial weights were trained on 11 of the 12 test images, without labels" in summary_of(tuned)["remarks"]
    )
    again = paucal.train(
        tmp_path / "set_train.txt", init=str(tuned), method="supervised", epochs=1, output=str(tmp_path / "again")
    ).run
    capsys.readouterr()
    said = f"the pre-training {first} has seen 11, without labels, of the 12 test images of "
    table = ["--protocol", "knn", "--no-cache", "--no-floor", "--bootstrap", "10", "--output", str(tmp_path / "out")]
    for words in ([first, tmp_path / "set_train.txt", *table], [again, *table], [again], [again, data]):
        output = run_eval(words, capsys)
        if words[-1] == data:  # of which the run has learned from all
            continue
        assert f"{said}set" in output, words
    stored = json.loads((tmp_path / "out" / "results.json").read_text())["data"][0]["seen_unlabelled"]
    assert stored == {str(again): [f"{said}set"]}
    shutil.move(first, tmp_path / "elsewhere")
    assert f"whether {first}, whose weights the model started from, has seen the 12 test images is unknown" in run_eval(
        [again], capsys
    )


def run_eval(words, capsys) -> str:
    assert main(["eval", *map(str, words)]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_eval__of_what_has_seen_none_says_so_and_of_a_plain_run_nothing(pictures, tmp_path, capsys):
    data = lay_out(pictures, tmp_path / "data", in_parts("val"))
    first = start(data, tmp_path / "first", epochs=1).run
    table = ["--protocol", "knn", "--no-cache", "--no-floor", "--bootstrap", "10", "--output", tmp_path / "out"]
    assert f"the pre-training {first} has seen none of the 8 test images of data" in run_eval([first, *table], capsys)
    plain = paucal.train(data, method="supervised", epochs=1, output=str(tmp_path / "plain")).run
    assert "pre-training" not in run_eval([plain], capsys)
    assert "data: accuracy" in run_eval([plain, data], capsys)
    metrics = json.loads((plain / "evaluation" / "data" / "metrics.json").read_text())
    assert metrics["images"] == 8  # the val part alone, not what the run was trained on
