"""`paucal study` as people call it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import paucal
from cli.calls import call, failure, make_photos, table
from cli.studied import shrink
from paucal.studies.study import Study
from paucal.types import UserError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos", classes=2, greys=(90, 40, 60))


def test_list__shows_what_each_needs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert call("study", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert "runnable" in rows["drloc-table-2a"]
    assert "3.7" in rows["drloc-table-2a"]
    assert "tiny, small" in rows["drloc-table-2a"]
    assert "needs data: imagenet-100" in rows["drloc-table-3"]
    assert "needs data: coco; trained weights" in rows["esvit-table-4"]
    assert "needs trained weights" in rows["dhvt-table-1"]
    assert "label maps" in rows["lvvit-table-2"]
    assert "imagenet-1k: ImageNet-1K. register at https://image-net.org" in "\n".join(lines)
    assert "50 TFLOP/s" in "\n".join(lines)


def test_show__prints_numbers_and_settings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert call("study", "show", "drloc-table-3") == 0
    said = capsys.readouterr().out
    assert "86.09 ± 0.12" in said
    assert (
        "Swin-T + L_drloc, 300 epochs (imagenet-100): --classes imagenet100 --init none --recipe drloc-scratch" in said
    )
    assert "--epochs 300 --schedule-epochs 300" in said
    assert "recipe drloc-scratch: arXiv:2106.03746, section 4" in said
    assert call("study", "show", "dhvt-table-4") == 0
    reading = "recipe dhvt-cifar: arXiv:2210.05958, supplement, with the augmentation of the code"
    assert reading in capsys.readouterr().out
    assert call("study", "show", "esvit-figure-6") == 0
    assert "by hand: paucal explain RUN IMAGE OTHER_IMAGE" in capsys.readouterr().out


def test_study__of_facts_is_the_table_itself(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert call("study", "dhvt-table-6") == 0
    said = capsys.readouterr().out
    assert re.search(r"ClipArt +33525 +14604 +345 +97", said)
    assert "by hand: to see what a list file on this machine contains: paucal check clipart_train.txt" in said
    assert call("study", "show", "dhvt-table-6") == 0
    assert capsys.readouterr().out == said
    with pytest.raises(UserError, match="'paucal study show dhvt-table-6' prints its published numbers"):
        paucal.study("dhvt-table-6")


def _shortened(study: Study) -> Study:
    return replace(study, scales={"tiny": replace(study.scales["tiny"], epochs=2)})


def test_study__trains_and_prints_published_beside_measured(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shrink(monkeypatch, ["drloc-table-9"], _shortened)
    out = tmp_path / "study"
    words = ["study", "drloc-table-9", "--data", photos, "--output", out, "--workers", "0"]
    assert call(*words) == 0
    said = capsys.readouterr().out
    assert "drloc-table-9 with stand-ins: 2 training runs, 32 pixels, 2 epochs" in said
    assert "2 runs to compute with 1 worker, about" in said
    assert "CIFAR-100, Infograph, which differ only in their data, are not run" in said
    assert "stand-ins on photos" in said
    rows = {(row["row"], row["column"]): row for row in table(out / "results.csv")}
    loss = rows["ViT-B/16 + L_drloc", "CIFAR-10"]
    assert (loss["published"], loss["seeds"], loss["why"]) == ("73.91", "1", "")
    assert float(loss["published_gain"]) == pytest.approx(2.21)
    runs = {row["way"]: row for row in table(out / "photos" / "runs.csv")}
    assert float(loss["measured"]) == pytest.approx(100 * float(runs["ViT-B/16 + L_drloc"]["test_top1"]))
    gain = float(loss["measured"]) - float(rows["ViT-B/16", "CIFAR-10"]["measured"])
    assert float(loss["measured_gain"]) == pytest.approx(gain)
    assert rows["ViT-B/16", "Infograph"]["why"] == "not run at this scale"
    page = (out / "study.html").read_text()
    assert "73.91" in page
    assert 'href="photos/comparison.html"' in page
    assert (out / "photos" / "comparison.html").is_file()
    weights = sorted(out.glob("photos/cells/*/run/model.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    assert len(before) == 2
    assert call(*words) == 0  # nothing is trained again
    assert before == [path.stat().st_mtime_ns for path in weights]
    assert call(*words, "--rows", "ViT-B/16") == 0  # what is there stays in the table
    again = {(row["row"], row["column"]): row for row in table(out / "results.csv")}
    assert again["ViT-B/16 + L_drloc", "CIFAR-10"] == loss
    refused = failure(capsys, "study", "drloc-table-9", "--output", out)
    assert "contains the study on 'photos', but the requested images are digits: choose another folder" in refused


@pytest.mark.slow
def test_study__pretrains_and_judges_features(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "study"
    assert call("study", "esvit-table-5", "--data", photos, "--output", out, "--workers", "0") == 0
    assert "1 pre-training run, 32 pixels, 10 epochs" in capsys.readouterr().out
    rows = {(row["row"], row["column"]): row for row in table(out / "results.csv")}
    for column, value in (("linear", "77.1"), ("k-NN", "73.7")):
        row = rows["ImageNet-1K", column]
        assert row["published"] == value
        assert 0 <= float(row["measured"]) <= 100
        assert 0 <= float(row["random"]) <= 100
    assert rows["WebVision-v1", "linear"]["why"] == "not run at this scale"
    assert rows["ImageNet-1K", "wins"]["why"] == "quoted"


@pytest.mark.slow
def test_study__pretrains_with_several_workers_what_one_would(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["study", "esvit-table-2", "--rows", "Swin-T, W=7", "--data", photos, "--workers", "0"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the threads of a worker are this machine's shared out, and decide the last bits
    try:
        for name, jobs in (("one", "1"), ("two", "2")):
            assert call(*words, "--output", tmp_path / name, "--jobs", jobs) == 0
    finally:
        torch.set_num_threads(threads)
    one, two = (
        {(row["row"], row["column"]): row for row in table(tmp_path / name / "results.csv")} for name in ("one", "two")
    )
    assert one == two
    assert {key: row["seeds"] for key, row in one.items() if row["measured"]} == {
        ("Swin-T, W=7", f"{tasks} {score}"): "1" for tasks in ("L_V", "L_V+L_R") for score in ("linear", "k-NN")
    }
    weights = [sorted(tmp_path.glob(f"{name}/photos/cells/*/run/model.safetensors")) for name in ("one", "two")]
    assert [path.read_bytes() for path in weights[0]] == [path.read_bytes() for path in weights[1]]
    assert len(weights[0]) == 2
    assert len(list(tmp_path.glob("two/photos/workers/*.log"))) == 2


@pytest.mark.slow
def test_study__makes_label_maps_for_rows_that_learn_from_some(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "study"
    rows = ["--rows", "+ enhanced residual", "+ token labeling with MixToken"]
    assert call("study", "lvvit-table-2", "--data", photos, "--output", out, "--workers", "0", *rows) == 0
    assert "on these images for" in capsys.readouterr().out
    teacher, *_ = (out / "teacher").glob("cells/*/run")
    for run in out.glob("photos/cells/*/run"):  # nobody is tested on what the teacher has learned
        assert (run / "split.csv").read_text() == (teacher / "split.csv").read_text()
    found = {row["row"]: row for row in table(out / "results.csv") if row["column"] == "ImageNet-1K"}
    assert found["+ token labeling with MixToken"]["seeds"] == "1"
    assert found["+ 224 to 384"]["why"] == "quoted"
    assert float(found["+ token labeling with MixToken"]["published_gain"]) == pytest.approx(3.4)
    maps = (out / "maps" / "values.npy").stat().st_mtime_ns
    assert call("study", "lvvit-table-2", "--data", photos, "--output", out, "--workers", "0", *rows) == 0
    assert (out / "maps" / "values.npy").stat().st_mtime_ns == maps


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drloc-tabel-9"], "there is no study 'drloc-tabel-9' (did you mean drloc-table-9"),
        (["show"], "needs the NAME of a study"),
        (["show", "dhvt"], "there is no study 'dhvt'"),
        (["list", "dhvt-table-2"], "use 'paucal study show dhvt-table-2'"),
        (["list", "--scale", "tiny"], "takes no flags: remove --scale"),
        (["drloc-table-9", "tiny"], "unknown word 'tiny' after 'drloc-table-9'"),
        (["drloc-table-9", "--scale", "medium"], "--scale"),
        (["drloc-table-9", "--rows", "ViT"], "--rows: drloc-table-9 has no 'ViT'"),
        (["dhvt-table-9", "--rows", "PVT-S"], "does not run PVT-S at this scale"),
        (["drloc-table-9", "--recipe", "dhvt"], "--recipe needs --scale full"),
        (["drloc-table-9", "--data", "a", "b"], "a single DATA replaces all data sets"),
        (["drloc-table-9", "--scale", "full"], "Infograph cannot be opened by name"),
        (["drloc-table-9", "--scale", "full", "--data", "x"], "expected NAME=DATA such as cifar10=FOLDER"),
        (["drloc-table-9", "--scale", "full", "--data", "infografh=x"], "(did you mean infograph"),
        (
            ["drloc-table-1", "--scale", "full"],
            "drloc-table-1 is a reference table with nothing to run: remove --scale",
        ),
        (["esvit-figure-7"], "by hand: paucal explain RUN IMAGE --show attention"),
        (["esvit-figure-7"], "; 'paucal study show esvit-figure-7' prints its published numbers."),
        (["esvit-table-2", "--scale", "full", "--recipe", "x"], "--recipe is only for studies that train with labels"),
    ],
)
def test_study__refuses_in_one_sentence(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in failure(capsys, "study", *words)
    assert list(tmp_path.iterdir()) == []


def test_study__leaves_other_folders_alone(capsys, tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    said = failure(capsys, "study", "drloc-table-9", "--output", tmp_path)
    assert "contains 'letter.txt', which is not part of a study" in said
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
