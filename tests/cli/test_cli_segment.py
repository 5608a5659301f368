"""`paucal segment`: from images and masks to a judged model, and masks of new images."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import paucal
from cli.calls import SMALL, call, failure, make_scenes, table
from export.alone import run_alone
from paucal.runner.time_budget import Pace
from paucal.tasks.segmentation.job import SegmentationJob

QUICK = [*SMALL, "--crops", "2", "--epochs", "3", "--lr", "0.01", "--seed", "1"]


@pytest.fixture(scope="module")
def segmented(tmp_path_factory, drawing):
    """A finished run with its pictures, on scenes beside it."""
    base = tmp_path_factory.mktemp("segmented")
    scenes = make_scenes(base / "scenes")
    with drawing():
        assert call("segment", scenes, *QUICK, "--output", base / "run") == 0
    return base


def test_answers__are_written_as_masks_that_are_read_back(segmented, tmp_path):
    images = sorted((segmented / "scenes" / "images").iterdir())[:3]
    assert call("predict", segmented / "run", *images, "--to", "masks", "--output", tmp_path / "out") == 0
    model = paucal.load_segmenter(segmented / "run")
    for path in images:
        with Image.open(tmp_path / "out" / "masks" / f"{path.stem}.png") as mask, Image.open(path) as image:
            assert np.array_equal(np.asarray(mask), model.mask(image))
    assert (tmp_path / "out/classes.csv").read_text().startswith("name,value")


def test_segment__leaves_a_judged_model_masks_and_pictures(segmented):
    run = segmented / "run"
    found = json.loads((run / "evaluation/test/segmentation.json").read_text())
    rows = [row["key"] for row in table(run / "split.csv") if row["split"] == "test"]
    assert found["images"] == len(rows) == 3
    confusion = np.asarray(found["confusion"])
    assert confusion.sum() == len(rows) * 40 * 48
    expected = np.zeros_like(confusion)
    for key in rows:  # counted again from the files alone
        mask = np.asarray(Image.open(segmented / "scenes" / key.replace("images", "masks")))
        answer = np.asarray(Image.open(run / "evaluation/test/masks" / key))
        np.add.at(expected, (mask.ravel(), answer.ravel()), 1)
    assert confusion.tolist() == expected.tolist()
    hits = np.diagonal(confusion)
    overlap = hits / (confusion.sum(0) + confusion.sum(1) - hits)
    assert found["mean_iou"]["value"] == pytest.approx(overlap.mean())
    for name in ("worst_images.png", "best_images.png", "train_batch.png", "curves.png"):
        assert (run / "plots" / name).stat().st_size > 1000
    page = (run / "report.html").read_text()
    assert f"{100 * overlap.mean():.1f} %" in page
    assert "class 2" in page


def test_segment__learns(segmented, tmp_path):
    """Better than the best answer without looking at an image, which is the most frequent class everywhere."""
    long = [*SMALL, "--crops", "4", "--epochs", "16", "--lr", "0.05", "--seed", "1"]
    assert call("segment", segmented / "scenes", *long, "--output", tmp_path / "run") == 0
    found = json.loads((tmp_path / "run/evaluation/test/segmentation.json").read_text())
    pixels = np.asarray(found["confusion"]).sum(1)
    assert found["mean_iou"]["value"] > pixels.max() / pixels.sum() / len(pixels) + 0.1


def test_a_stopped_run__goes_on_to_the_very_same_end(segmented, tmp_path, capsys):
    run = tmp_path / "run"
    limit = ["--time-limit", "0.01s"]
    assert call("segment", segmented / "scenes", *QUICK, *limit, "--output", run) == 130
    assert f"paucal segment --resume {run}" in capsys.readouterr().out
    for _ in range(4):  # each after a step: in the first epoch, at its end, and in the second
        assert call("segment", "--resume", run, *limit) == 130
    assert call("segment", "--resume", run, "--time-limit", "1h") == 0
    for name in ("model.safetensors", "evaluation/test/segmentation.json", "split.csv"):
        assert (run / name).read_bytes() == (segmented / "run" / name).read_bytes(), name
    assert "is finished" in failure(capsys, "segment", "--resume", run)


def test_the_config_of_a_run__repeats_it(segmented, tmp_path, monkeypatch):
    monkeypatch.setattr("paucal.runner.initial_weights.choose_weights", None)  # nobody looks for another start
    config = segmented / "run" / "config.yaml"
    assert call("segment", "--config", config, "--output", tmp_path / "again") == 0
    one, two = ((run / "model.safetensors").read_bytes() for run in (segmented / "run", tmp_path / "again"))
    assert one == two


def test_time__chooses_a_length_and_says_why(segmented, tmp_path, capsys, monkeypatch):
    """With steps that are said to take 4 seconds: 60 seconds have room for some dozen."""
    monkeypatch.setattr(SegmentationJob, "measure", lambda job, setup, tunes_threads: Pace(4.0, 0.1, 0.2, 8.0))
    # These steps are quicker.
    monkeypatch.setattr("paucal.training.length_correction.RunClock._find_change", lambda *_: None)
    run = tmp_path / "run"
    argv = ["segment", segmented / "scenes", *SMALL, "--output", run]
    assert call(*argv, "--time", "60s") == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    settings, steps = config["settings"], int(table(run / "metrics.csv")[-1]["step"])
    assert steps == settings["epochs"] * (settings["crops"] * 8 // 4)
    assert 0.5 * 60 < 4 * steps < 60
    assert config["origin"]["epochs"].startswith("auto: 60s: an epoch takes about")
    assert "plan: " in capsys.readouterr().out
    assert "--time 5s is too short" in failure(capsys, *argv, "--time", "5s", "--overwrite")
    assert (run / "model.safetensors").exists()


def test_print_config__of_a_run_with_a_time_trains_no_step(segmented, monkeypatch, capsys):
    monkeypatch.setattr(SegmentationJob, "measure", lambda *_: pytest.fail("steps were timed"))
    assert call("segment", segmented / "scenes", *SMALL, "--time", "60s", "--print-config") == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["time"] == "60s"
    assert "epochs" not in config


def test_predict__writes_masks_in_the_coding_of_the_training_and_pictures(segmented, tmp_path, capsys):
    new = make_scenes(tmp_path / "new", 3, size=(33, 50), parts=("a/b", "truth"), seed=7)
    out = tmp_path / "out"
    assert call("predict", segmented / "run", new / "a", "--output", out, "--scales", "1", "1.5", "--mirror") == 0
    assert "3 masks in" in capsys.readouterr().err
    for number in range(3):
        mask = np.asarray(Image.open(out / f"masks/b/{number:02d}.png"))
        assert mask.shape == (33, 50)
        assert set(np.unique(mask)) <= {0, 1, 2}
        assert np.asarray(Image.open(out / f"overlays/b/{number:02d}.png")).shape == (33, 50, 3)
    assert "is not empty" in failure(capsys, "predict", segmented / "run", new / "a", "--output", out)
    assert "give a new folder for the masks with --output" in failure(capsys, "predict", segmented / "run", new / "a")
    inside = failure(capsys, "predict", segmented / "run", new / "a", "--output", new / "a" / "x")
    assert "is inside the images" in inside
    for name in ("a.json", "a.csv", "a.png"):
        message = failure(capsys, "predict", segmented / "run", new / "a", "--output", tmp_path / name)
        assert "is a file name, but masks need a folder: give a new folder." in message
    assert "--format is for classifiers" in failure(
        capsys, "predict", segmented / "run", new / "a", "--output", tmp_path / "o2", "--format", "json"
    )


def test_predict__refuses_two_masks_of_one_name(segmented, tmp_path, capsys):
    new = make_scenes(tmp_path / "new", 1, parts=("a", "b"))
    argv = ["predict", segmented / "run", new / "a/00.png", new / "b/00.png", "--output", tmp_path / "out"]
    assert "would have the same name" in failure(capsys, *argv)
    assert not (tmp_path / "out").exists()


def test_verbs_that_classify__say_that_this_model_does_not(segmented, tmp_path, capsys):
    words = failure(capsys, "explain", segmented / "run", next((segmented / "scenes" / "images").iterdir()))
    assert "is for segmentation, expected classification: give a run of 'paucal train'" in words


def test_eval__of_the_test_images_is_what_the_run_found(segmented, tmp_path):
    assert call("eval", segmented / "run", "--output", tmp_path / "again") == 0
    again, first = (
        json.loads((folder / "segmentation.json").read_text())
        for folder in (tmp_path / "again", segmented / "run/evaluation/test")
    )
    assert again == first
    for path in (segmented / "run/evaluation/test/masks").rglob("*.png"):
        found = tmp_path / "again/masks" / path.relative_to(segmented / "run/evaluation/test/masks")
        assert np.array_equal(np.asarray(Image.open(found)), np.asarray(Image.open(path)))


def test_eval__counts_the_pixels_of_other_images_by_the_values_of_the_training(segmented, tmp_path, capsys):
    other = make_scenes(tmp_path / "other", 4, seed=1)
    found = paucal.evaluate(segmented / "run", other, output=str(tmp_path / "found"))
    confusion = np.zeros((3, 3), dtype=np.int64)
    for path in sorted((other / "masks").rglob("*.png")):
        answer = tmp_path / "found/masks/images" / path.name
        np.add.at(confusion, (np.asarray(Image.open(path)).ravel(), np.asarray(Image.open(answer)).ravel()), 1)
    assert found.segmentation[0].report.confusion.tolist() == confusion.tolist()
    hits = np.diagonal(confusion)
    mean = float((hits / (confusion.sum(0) + confusion.sum(1) - hits)).mean())
    assert found.metrics["mean_iou"] == pytest.approx(mean)
    assert found.score("segmentation").value == pytest.approx(mean)
    path = next(iter((other / "masks").iterdir()))
    Image.fromarray(np.full_like(np.asarray(Image.open(path)), 77)).save(path)
    assert "77" in failure(capsys, "eval", segmented / "run", other, "--output", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_eval__leaves_out_images_that_were_learned_from(segmented, tmp_path):
    own = {row["key"]: row["split"] for row in table(segmented / "run/split.csv")}
    test = sorted(key for key, part in own.items() if part == "test")
    shutil.copytree(segmented / "scenes", tmp_path / "copy")
    judged = lambda folder: sorted(f"images/{one.name}" for one in (folder / "masks/images").iterdir())  # noqa: E731
    for place, data in enumerate((segmented / "scenes", tmp_path / "copy")):
        paucal.evaluate(segmented / "run", data, output=tmp_path / f"out{place}")
        assert judged(tmp_path / f"out{place}") == test
    make_scenes(tmp_path / "more", 3, seed=9)
    for side in ("images", "masks"):
        for path in (tmp_path / "more" / side).iterdir():
            shutil.copy(path, tmp_path / "copy" / side / f"new{path.name}")
    found = paucal.evaluate(segmented / "run", tmp_path / "copy", output=tmp_path / "out")
    assert judged(tmp_path / "out") == sorted([*test, *(f"images/new{number:02d}.png" for number in range(3))])
    assert any(f"left out {len(own) - len(test)} of the {len(own) + 3} images" in text for text in found.said)


def test_eval__averages_over_scales_and_mirror_images(segmented, tmp_path, capsys):
    """The masks it writes are those of the model asked for the same looks, image by image."""
    out = tmp_path / "looks"
    assert call("eval", segmented / "run", "--scales", "0.75", "1.25", "--mirror", "--output", out) == 0
    model, folders = paucal.load_segmenter(segmented / "run"), (out, segmented / "run/evaluation/test")
    for path in (out / "masks").rglob("*.png"):
        name = path.relative_to(out / "masks")
        image = Image.open(next((segmented / "scenes/images").rglob(f"{name.stem}.*")))
        coded = model.card.coding.decode(model.mask(image, scales=(0.75, 1.25), mirror=True))
        assert np.array_equal(np.asarray(Image.open(path)), coded)
    losses = [json.loads((folder / "segmentation.json").read_text())["loss"] for folder in folders]
    assert losses[0] != losses[1]  # the masks themselves may be the same
    before = (segmented / "run/evaluation/test/segmentation.json").read_bytes()
    assert call("eval", segmented / "run", "--scales", "0.75", "1.25") == 0  # beside what the run has found
    found = (segmented / "run/evaluation/test-scales/segmentation.json").read_bytes()
    assert call("eval", segmented / "run", "--scales", "0.75", "1.25") == 0  # and once more in the same place
    assert (segmented / "run/evaluation/test-scales/segmentation.json").read_bytes() == found
    assert (segmented / "run/evaluation/test/segmentation.json").read_bytes() == before
    assert "each from 0.05 to 20" in failure(capsys, "eval", segmented / "run", "--scales", "0")
    assert call("eval", segmented / "run", "--mirror") == 0
    assert (segmented / "run/evaluation/test/segmentation.json").read_bytes() == before  # not in the run's own place
    (tmp_path / "mine/masks").mkdir(parents=True)  # somebody's own
    assert "masks' would be replaced" in failure(capsys, "eval", segmented / "run", "--output", tmp_path / "mine")


def test_whole_images_at_their_sides__are_what_is_deployed(segmented, tmp_path, capsys):
    """The run, `eval`, a loaded model and one whose settings are forgotten answer the same."""
    run, sides = tmp_path / "run", ["--test-mode", "whole", "--resize-to", "64", "128", "--auxiliary-width", "6"]
    colour = ["--colour", "photometric"]
    assert call("segment", segmented / "scenes", *QUICK, "--epochs", "1", *sides, *colour, "--output", run) == 0
    model = paucal.load_segmenter(run)
    look = model.window_options((0.5,))
    assert (look.whole, look.resize_to, model.card.resize_to) == (True, (64, 128), (64, 128))
    for path in (run / "evaluation/test/masks").rglob("*.png"):
        image = Image.open(next((segmented / "scenes/images").rglob(f"{path.stem}.*")))
        assert np.array_equal(np.asarray(Image.open(path)), model.card.coding.decode(model.mask(image)))
    assert call("eval", run, "--output", tmp_path / "again") == 0
    losses = [
        json.loads((folder / "segmentation.json").read_text())["loss"]
        for folder in (tmp_path / "again", run / "evaluation/test", segmented / "run/evaluation/test")
    ]
    assert losses[0] == losses[1] != losses[2]
    plain = json.loads((run / "model.json").read_text())
    del plain["whole"], plain["resize_to"]
    (run / "model.json").write_text(json.dumps(plain))
    assert paucal.load_segmenter(run).window_options() == paucal.load_segmenter(segmented / "run").window_options()


def test_eval__says_what_is_of_classifiers(segmented, capsys):
    for words in (["--real-labels", "real.json"], ["--protocol", "classification"]):
        assert "is for segmentation: remove --" in failure(capsys, "eval", segmented / "run", *words)


def test_binary_masks_and_ignored_values__keep_their_coding(tmp_path, capsys):
    scenes = make_scenes(tmp_path / "scenes")
    for path in (scenes / "masks").iterdir():
        mask = np.asarray(Image.open(path))
        Image.fromarray(np.asarray([0, 255, 77], np.uint8)[mask]).save(path)
    run = tmp_path / "run"
    assert call("segment", scenes, *QUICK, "--ignore", "77", "--epochs", "1", "--output", run) == 0
    assert "two classes, 0 and 255; 77 is not labelled" in capsys.readouterr().out
    found = json.loads((run / "evaluation/test/segmentation.json").read_text())
    assert np.asarray(found["confusion"]).sum() == found["images"] * 40 * 43  # the bars of 5 columns count for nothing
    masks = (np.asarray(Image.open(path)) for path in (run / "evaluation/test/masks").rglob("*.png"))
    assert {value for mask in masks for value in np.unique(mask).tolist()} <= {0, 255}


def test_names_of_classes__reach_the_results_and_may_have_no_pixel(segmented, tmp_path):
    names = tmp_path / "classes.csv"
    names.write_text("name,value\nground,0\ndisc,1\nbar,2\nnothing,3\n")
    run = tmp_path / "run"
    assert call("segment", segmented / "scenes", *QUICK, "--classes", names, "--epochs", "1", "--output", run) == 0
    found = json.loads((run / "evaluation/test/segmentation.json").read_text())
    assert [row["class"] for row in found["classes"]] == ["ground", "disc", "bar", "nothing"]
    assert found["unseen"] == ["nothing"]
    remarks = json.loads((run / "summary.json").read_text())["remarks"]
    assert any("1 class without a training pixel: nothing" in one for one in remarks)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--batch-size", "1"], "batch norms need at least 2 crops"),
        (["--scale", "2", "1"], "the smallest and the largest factor"),
        (["--scales", "0"], "each from 0.05 to 20"),
        (["--resize-to", "64"], "expected a shorter and a longer side, such as 512 2048"),
        (["--resize-to", "4", "64"], "--resize-to has 4"),
        (["--colour", "wild"], "--colour"),
        (
            ["--test-mode", "whole", "--model", "convit_tiny", "--model-args", "depth=1"],
            "convit_tiny only takes images of 32x32 pixels",
        ),
        (["--time", "5m", "--epochs", "2"], "both set the length"),
        (["--download"], "--download is not supported for segmentation"),
        (["--model", "no_such_net"], "no_such_net"),
        (["--ignore", "1", "2"], "expected one grey value"),
        (["--eval-mode"], "--eval-mode keeps the running statistics"),
        (["--mask-values", "colour"], "the masks are grey"),
        (["--classes", "none.txt"], "none.txt' does not exist; check the path"),
        (["--images", "x"], "--images and --masks must be given together"),
        (["--recipe", "upernet-ade20k"], "starts from a pre-trained backbone"),
        (["--freeze-epochs", "3"], "leaves no epoch of 3"),
    ],
)
def test_settings_that_do_not_do__are_refused_in_one_sentence(segmented, tmp_path, capsys, change, words):
    kept = QUICK if "--time" not in change else SMALL
    out = ["--output", tmp_path / "run"]
    assert words in failure(capsys, "segment", segmented / "scenes", *kept, *change, *out)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_data_that_do_not_do__are_refused_in_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "DATA is missing" in failure(capsys, "segment", *QUICK)
    assert "does not exist" in failure(capsys, "segment", "nowhere", *QUICK)
    few = make_scenes(tmp_path / "few", 2)
    assert "2 images have labelled pixels; expected 3" in failure(capsys, "segment", few, *QUICK)
    bad = make_scenes(tmp_path / "bad", 5)
    Image.fromarray(np.zeros((48, 40), np.uint8)).save(bad / "masks/02.png")
    assert "mask 02.png has 48x40 pixels" in failure(capsys, "segment", bad, *QUICK)
    (bad / "masks/02.png").write_bytes(b"no picture")
    assert "02.png (a mask) cannot be decoded" in failure(capsys, "segment", bad, *QUICK)
    assert not (tmp_path / "runs").exists()


def test_a_run__is_not_gone_on_with_when_its_masks_are_others(segmented, tmp_path, capsys):
    scenes = make_scenes(tmp_path / "scenes")
    run = tmp_path / "run"
    assert call("segment", scenes, *QUICK, "--time-limit", "0.01s", "--output", run) == 130
    Image.fromarray(np.zeros((40, 48), np.uint8)).save(scenes / "masks/03.png")
    assert "images/03.png" in failure(capsys, "segment", "--resume", run)


def test_folders_of_parts__are_the_parts(tmp_path):
    for part, count, seed in (("train", 6, 0), ("val", 2, 1), ("test", 3, 2)):
        make_scenes(tmp_path / "scenes" / part, count, seed=seed)
    run = tmp_path / "run"
    assert call("segment", tmp_path / "scenes", *QUICK, "--epochs", "1", "--output", run) == 0
    rows = table(run / "split.csv")
    assert all(row["key"].startswith(row["split"] + "/") for row in rows)
    assert len(rows) == 11


def test_several_looks_and_no_validation__work_together(segmented, tmp_path):
    run = tmp_path / "run"
    more = ["--val-fraction", "0", "--scales", "0.75", "1.25", "--mirror", "--epochs", "1", "--auxiliary", "0"]
    assert call("segment", segmented / "scenes", *QUICK, *more, "--schedule", "linear", "--output", run) == 0
    found = json.loads((run / "summary.json").read_text())
    assert found["epoch_images"] == 2 * found["parts"]["train"]
    assert (found["selected"], found["looks"]) == (False, "scales 0.75, 1.25, mirrored")
    assert "last epoch" in (run / "report.html").read_text()


def test_a_run_of_ours__is_a_start_for_the_backbone(trained, segmented, tmp_path, capsys):
    run = tmp_path / "run"
    argv = ["--init", trained / "run", "--img-size", "32", "--width", "8", "-b", "4", "-j", "0", "--crops", "1"]
    assert call("segment", segmented / "scenes", *argv, "--epochs", "1", "--output", run) == 0
    printed = capsys.readouterr().out
    assert "starts from the run" in printed.replace("\n", " ")
    settings = yaml.safe_load((run / "config.yaml").read_text())["settings"]
    assert "images: not worth preserving" in " ".join(printed.split())
    assert (settings["model"], settings["freeze"], settings["backbone_lr"]) == ("vit_mini", "none", 1.0)
    assert json.loads((run / "init.json").read_text())["share"] == 1.0
    score = json.loads((run / "summary.json").read_text())["test_mean_iou"]
    assert call("runs", tmp_path) == 0
    assert f"{100 * score:.1f} %" in capsys.readouterr().out


def test_export__of_a_segmenter_answers_for_the_same_pixels(segmented, tmp_path, capsys):
    found = paucal.export_model(segmented / "run", output=str(tmp_path / "out"))
    assert {path.name for path in found.files} == {"model.pt2", "model.onnx", "export.json"}
    assert all(each.images == 3 and each.agreement > 0.999 for each in found.comparisons.values())
    exact = json.loads((segmented / "run/evaluation/test/segmentation.json").read_text())
    right = np.trace(exact["confusion"]) / np.sum(exact["confusion"])
    assert found.comparisons["model.onnx"].accuracy == pytest.approx((right, right), abs=0.002)
    assert "model.onnx" in (segmented / "run/report.html").read_text()
    for flags in (["--with-preprocessing"], ["--format", "safetensors"]):
        words = failure(capsys, "export", segmented / "run", *flags, "--output", tmp_path / "other")
        assert "for classifiers" in words
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), [("onnx", "model.onnx"), ("openvino", "model.xml")])
def test_exported_file__answers_as_the_model_with_its_runtime_alone(segmented, tmp_path, name, file):
    pytest.importorskip(name)
    found = paucal.export_model(segmented / "run", output=tmp_path / "out", format=[name], images=3)
    assert found.comparisons[file].agreement > 0.99
    model = paucal.load_segmenter(segmented / "run")
    height, width = model.card.preprocessing.image_size
    window = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = model.network.eval()(window)
    answer = torch.from_numpy(run_alone(tmp_path / "out" / file, window.numpy(), tmp_path)).float()
    assert float((answer.argmax(1) == own.argmax(1)).float().mean()) > 0.99
