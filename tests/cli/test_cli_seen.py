"""`paucal eval RUN DATA` where DATA has images that the run was trained on."""

import shutil
from pathlib import Path

import paucal
from cli.calls import call, failure, make_photos, table

KNN = ["--protocol", "knn", "--no-cache", "--no-floor", "--bootstrap", "10"]


def judged(folder: Path) -> set[str]:
    return {row["key"] for row in table(folder / "predictions.csv")}


def test_eval__of_the_runs_own_images_named_or_copied_is_that_of_its_test_images(trained, tmp_path, capsys):
    run, own = trained / "run", {row["key"]: row["split"] for row in table(trained / "run/split.csv")}
    shutil.copytree(trained / "photos", tmp_path / "copy")
    shutil.copytree(run, tmp_path / "run")  # as on another machine
    for place, data in enumerate((trained / "photos", tmp_path / "copy")):
        for name, part in ((run, []), (tmp_path / "run", ["--part", "val"])):
            output = tmp_path / f"out-{place}-{len(part)}"
            assert call("eval", name, data, *part, "--output", output) == 0
            assert judged(output) == {key for key, one in own.items() if one == (part or ["", "test"])[1]}
    found = paucal.evaluate(run, tmp_path / "copy", output=tmp_path / "api")
    assert found.metrics["top1"] == paucal.evaluate(run, output=tmp_path / "own").metrics["top1"]
    assert any("evaluated on the test images" in text for text in found.said)


def test_eval__leaves_out_what_was_learned_from_among_more_images(trained, tmp_path, capsys):
    own = {row["key"]: row["split"] for row in table(trained / "run/split.csv")}
    more = make_photos(tmp_path / "more", each=2, seed=5)
    for key in own:
        shutil.copy(trained / "photos" / key, more / Path(key).parent / f"again{Path(key).name}")
    assert call("eval", trained / "run", more, "--output", tmp_path / "out") == 0
    said = " ".join(capsys.readouterr().out.split())
    learned = sum(part != "test" for part in own.values())
    assert f"left out {learned} of the {len(own) + 6} images" in said
    assert len(judged(tmp_path / "out")) == len(own) + 6 - learned
    assert "--part val: " in failure(capsys, "eval", trained / "run", more, "--part", "val")


def test_eval__of_frozen_features_has_the_parts_of_the_run_for_a_copy_too(trained, tmp_path, capsys):
    own = [row["split"] for row in table(trained / "run/split.csv")]
    shutil.copytree(trained / "photos", tmp_path / "copy")
    for data in (trained / "photos", tmp_path / "copy"):
        assert call("eval", trained / "run", data, *KNN, "--output", tmp_path / "out") == 0
        assert {row["images"] for row in table(tmp_path / "out/table.csv")} == {str(own.count("test"))}
    sentence = failure(capsys, "eval", trained / "run", tmp_path / "copy", *KNN, "--part", "val")
    assert "--part is not supported for frozen features, which are always evaluated on the test images" in sentence


def test_eval__of_frozen_features_leaves_out_test_images_that_were_learned_from(trained, tmp_path, capsys):
    own = {row["key"]: row["split"] for row in table(trained / "run/split.csv")}
    make_photos(tmp_path / "parted/train", each=4, seed=6)
    test = make_photos(tmp_path / "parted/test", each=3, seed=7)
    learned = [key for key, part in own.items() if part == "train"][:5]
    for key in learned:
        shutil.copy(trained / "photos" / key, test / Path(key).parent / f"again{Path(key).name}")
    assert call("eval", trained / "run", tmp_path / "parted", *KNN, "--output", tmp_path / "out") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "left out 5 of the 14 test images of parted" in said
    assert {row["images"] for row in table(tmp_path / "out/table.csv")} == {"9"}
