"""Hostile and clumsy input to every verb: one sentence, at once, with nothing obeyed that came from outside."""

import csv
import errno
import json
import os
import shutil
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from cli.calls import QUICK, call, failure, make_photos
from paucal.cli import main as command
from paucal.data.sources.opening import open_images
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.types import UserError
from test_reading import BOMB

LONG = "A" * 5000


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of a finished run, to be damaged."""
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


@pytest.fixture
def stopped(run) -> Path:
    """A run that can go on."""
    (run / "summary.json").unlink()
    return run


def change_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_config__that_is_a_bomb_a_pipe_or_endless_is_refused_at_once(tmp_path, capsys, verb):
    (tmp_path / "bomb.yaml").write_text(BOMB)
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    (tmp_path / "large.yaml").write_bytes(b"a: 1\n" * 300_000)
    for name, words in {
        "bomb": "it repeats a value by an alias (*a), which is not supported",
        "pipe": "is not a regular file",
        "endless": "is not a regular file",
        "large": "is larger than 1,048,576 bytes",
    }.items():
        begin = time.monotonic()
        assert words in failure(capsys, verb, "--config", tmp_path / f"{name}.yaml")
        assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("just words\n", "contains no settings; expected lines such as 'epochs: 30'"),
        ("- 1\n- 2\n", "contains no settings"),
        ("a: [1,\n", "it is not valid YAML at line 2, column 1"),
        (
            "epochs: !!python/object:os.system {}\n",
            "it has a value that is not a plain text, number, list or mapping at line 1, column 9",
        ),
        (f"epochs: {LONG}\n", "--epochs: expected a whole number, got 'AAAA"),
        ("words " * 20_000, "contains no settings"),
        ("epochs: .inf\n", "--epochs: expected a whole number"),
        ("epochs: 2020-01-01\n", "--epochs: expected a whole number"),
        ('data: "a\\0b"\n', "a\\x00b"),
    ],
)
def test_config__is_said_to_be_wrong_without_jargon_and_without_repeating_it(tmp_path, capsys, content, words):
    (tmp_path / "c.yaml").write_text(content)
    message = failure(capsys, "train", "--config", tmp_path / "c.yaml")
    assert words in message
    assert len(message) < 1100
    assert "parser" not in message.lower().replace(str(tmp_path).lower(), "")


def test_values__of_thousands_of_characters_are_shortened(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for argv in (
        ["train", LONG],
        ["train", "--epochs", LONG],
        ["train", "--model", LONG],
        ["train", "--config", LONG],
        ["train", "--output", f"x/{LONG}"],
        ["train", f"--{LONG}"],
        [LONG],
        ["eval", LONG],
        ["predict", trained / "run", LONG],
        ["label", "digits", "--teacher", LONG, "--output", "maps"],
        ["models", LONG],
    ):
        assert len(failure(capsys, *argv)) < 1100, argv[:2]


def test_os_errors__come_with_advice_that_fits(tmp_path, capsys, monkeypatch):
    (tmp_path / "loop").symlink_to("loop")

    for number, advice in {
        errno.ELOOP: "remove the symbolic link that leads to itself",
        errno.ENAMETOOLONG: "give a shorter name",
        errno.ENOSPC: "free some space, then",
        errno.EACCES: "check the permissions, then",
    }.items():
        problem = OSError(number, os.strerror(number), str(tmp_path / "loop"))
        monkeypatch.setattr(command, "_dispatch", Mock(side_effect=problem))
        assert advice in failure(capsys, "train")


def test_data__given_twice_is_said(tmp_path, capsys):
    message = failure(capsys, "train", make_photos(tmp_path / "photos"), "--data", "nowhere")
    assert "photos' and --data is 'nowhere': remove DATA or --data" in message


def test_data_root__that_is_missing_is_said(tmp_path, capsys):
    photos = make_photos(tmp_path / "photos")
    for verb in ("train", "pretrain"):
        message = failure(capsys, verb, photos, "--data-root", tmp_path / "gone")
        assert "--data-root: the folder" in message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train", "-b", str(2**31)], "error: -b is 2147483648, expected a number between 1 and 1,048,576"),
        (["train", "-b", str(2**70)], "error: -b is"),
        (["train", "--epochs", "9" * 400], "--epochs is 999"),
        (["train", "--epochs", "9" * 5000], "--epochs: expected a whole number"),
        (["train", "--accumulate", str(2**63)], "--accumulate is"),
        (["train", "--repeats", str(2**31)], "--repeats is"),
        (["train", "--few-labels", str(2**63)], "--few-labels is"),
        (["train", "--drloc-pairs", str(2**31)], "--drloc-pairs is"),
        (["train", "--drloc-hidden", str(2**31)], "--drloc-hidden is"),
        (["train", "--seed", str(2**64)], "--seed is"),
        (["train", "--lr", "1e300"], "--lr is 1e+300, expected a number above 0, at most 1e+30"),
        (["train", "--weight-decay", "1e300"], "--weight-decay is 1e+300, expected a number at most 1e+30"),
        (
            ["train", "-b", "1048576", "--accumulate", "1048576"],
            "an optimizer step would take 1,099,511,627,776 images",
        ),
        (["train", "--devices", "1024", "--device", "cpu"], "--devices is 1024, but this machine has"),
        (
            ["train", "--sync-bn", "--device", "cpu"],
            "--sync-bn: torch synchronises batch norms only on GPUs",
        ),
        (["train", "--model", "vit_mini", "--model-args", "depth=1000000000"], "is above the limit of 1,000"),
        (
            ["train", "--img-size", "4096", "--model", "resnet18", "-b", "1024"],
            "images of 4096x4096 pixels needs",
        ),
        (["pretrain", "--local-crops", str(2**31)], "--local-crops has 2147483648"),
        (["pretrain", "--local-size", str(2**31)], "--local-size has 2147483648"),
        (["pretrain", "--monitor-images", str(2**63)], "--monitor-images is"),
        (["eval", "vit_mini", "digits", "--protocol", "knn", "--seed", "-1"], "--seed is -1"),
        (["eval", "vit_mini", "digits", "--protocol", "knn", "--seed", str(2**70)], "--seed is"),
        (["eval", "vit_mini", "digits", "--protocol", "knn", "-b", str(2**31)], "error: -b is"),
        (["eval", "vit_mini", "digits", "--protocol", "knn", "--bootstrap", str(2**31)], "--bootstrap is"),
        (["eval", "vit_mini", "digits", "--protocol", "knn", "--max-images", "-5"], "--max-images is -5"),
        (["eval", "vit_mini", "digits", "--protocol", "knn", "-j", str(2**31)], "error: -j is"),
        (["predict", "nowhere", "x.png", "-b", str(2**31)], "error: -b is"),
        (["label", "digits", "--teacher", "x", "--output", "y", "--top-k", str(2**70)], "--top-k is"),
    ],
)
def test_numbers__beyond_use_are_refused_before_any_work(tmp_path, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(tmp_path)
    assert words in failure(capsys, *argv)
    assert list(tmp_path.iterdir()) == []


def test_images__that_are_pipes_are_unreadable_images(tmp_path, capsys, trained):
    photos = make_photos(tmp_path / "photos")
    os.mkfifo(photos / "class1" / "pipe.png")
    message = failure(capsys, "train", photos, *QUICK)
    assert "pipe.png cannot be decoded: it is not a regular file" in message
    assert "pipe.png" in failure(capsys, "predict", trained / "run", photos)
    assert call("predict", trained / "run", photos, "--on-bad-image", "skip", "--output", tmp_path / "p.csv") == 0
    assert len(list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))) == 36


@pytest.mark.parametrize("name", ["train.txt", "train.parquet"])
def test_lists_and_tables__that_are_pipes_are_refused(tmp_path, capsys, name):
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / name)
    failure(capsys, "train", tmp_path / "data" / name)
    failure(capsys, "train", tmp_path / "data")


@pytest.mark.skipif(".heic" in IMAGE_SUFFIXES, reason="the extra heif is installed, which reads these files")
def test_folder__says_what_it_passes_over(tmp_path, capsys, trained):
    photos = make_photos(tmp_path / "photos")
    for name in ("a.HEIC", "b.heic", "c.dcm", "noted"):
        (photos / "class0" / name).write_text("x")
    (photos / ".hidden").write_text("x")
    words = "4 files were skipped for having no known image format (2 .heic, 1 .dcm, 1 without a suffix)"
    assert words in " ".join(open_images(photos).notes)
    assert words in " ".join(open_images(photos, labelled=False).notes)
    capsys.readouterr()
    assert call("predict", trained / "run", photos, "--output", tmp_path / "p.csv") == 0
    assert words in " ".join(capsys.readouterr().err.split())
    (tmp_path / "phone").mkdir()
    (tmp_path / "phone" / "a.heic").write_text("x")
    assert "1 file was skipped" in failure(capsys, "train", tmp_path / "phone")


def test_parquet__without_a_label_column_is_told_what_can_be_done(tmp_path, capsys):
    pq.write_table(pa.table({"image": [b"x"], "kind": [1]}), tmp_path / "t.parquet")
    message = failure(capsys, "train", tmp_path / "t.parquet")
    assert "Rename the column of the classes to 'label'" in message
    assert "label_column" not in message


def test_names__do_not_reach_the_terminal_as_commands(tmp_path, capsys):
    photos = make_photos(tmp_path / "photos", classes=2)
    (photos / "class0").rename(photos / "\x1b[31mred :smiley: [bold]")
    output = ["--output", tmp_path / "run"]
    assert call("train", photos, *QUICK, *output) == 0
    assert call("eval", tmp_path / "run") == 0
    assert call("train", photos, "--method", "supervised", *QUICK, *output, "--overwrite") == 0
    failure(capsys, "train", f"{photos}/\x1b[31mred :smiley: [bold]")
    shown = capsys.readouterr()
    assert "\x1b[31mred" not in shown.out + shown.err
    assert "\x1b" not in (tmp_path / "run" / "train.log").read_text()


def test_messages__keep_colons_and_brackets(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no:x:where [bold]" in failure(capsys, "train", "no:x:where [bold]")
    assert r"no\x1b[31mwhere" in failure(capsys, "train", "no\x1b[31mwhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda card: card["backbone"].update(num_classes=10**9), "number of classes is 1000000000"),
        (lambda card: card["backbone"].update(num_classes=10**6), "must name the 1000000 classes"),
        (lambda card: card["backbone"].update(in_chans=10**9), "number of image channels"),
        (
            lambda card: card["backbone"].update(image_size=[10**9, 10**9]),
            "a model for (1000000000, 1000000000)",
        ),
        (lambda card: card["backbone"].update(arguments={"depth": 10**9}), "is above the limit of 1,000"),
        (lambda card: card["backbone"].update(arguments={"embed_dim": 10**9}), "is above the limit of 1,048,576"),
        (lambda card: card["backbone"].update(arguments=[1]), "model.json"),
        (lambda card: card["backbone"].update(name=7), "model.json"),
        (lambda card: card["backbone"].update(name="\x1b[31m"), r"\x1b[31m"),
        (lambda card: card.update(backbone=[]), "the stored description of a backbone"),
        (lambda card: card.update(classes={"a": 1}), "must name the 3 classes"),
        (lambda card: card.update(preprocessing=[1]), "model.json"),
        (lambda card: card["preprocessing"].update(mean="abc"), "has mean 'abc', expected a number for each channel"),
        (lambda card: card["preprocessing"].update(mean=[None, 1, 2]), "has mean (None, 1, 2), expected"),
        (lambda card: card["preprocessing"].update(crop_ratio="a"), "has crop_ratio 'a', expected"),
        (lambda card: card["preprocessing"].update(image_size=32), "model.json"),
        (lambda card: card["preprocessing"].update(image_size=[16, 24]), "model.json"),
        (lambda card: card["preprocessing"].update(interpolation=["bicubic"]), "interpolation"),
    ],
)
def test_card__that_lies_is_refused_at_once(run, capsys, change, words):
    change_json(run / "model.json", change)
    begin = time.monotonic()
    assert words in failure(capsys, "predict", run, run.parent)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("content", ["[" * 100_000, '{"format": ' + "9" * 5000 + "}", "null", "{", "\xff", '{"a"'])
def test_card__that_is_damaged_is_one_sentence(run, capsys, content):
    (run / "model.json").write_text(content, encoding="latin-1")
    message = failure(capsys, "predict", run, run.parent)
    assert "model.json" in message
    assert "char " not in message


def test_weights__of_odd_kinds_are_one_sentence(run, capsys, tmp_path):
    weights = run / "model.safetensors"
    good = weights.read_bytes()
    for content in (
        b"",
        good[:100],
        (2**62).to_bytes(8, "little") + good[8:],
        (10**8 + 1).to_bytes(8, "little") + good[8:],
        (2).to_bytes(8, "little") + b"{}",
    ):
        weights.write_bytes(content)
        assert "model.safetensors" in failure(capsys, "predict", run, run.parent)
    weights.unlink()
    os.mkfifo(weights)
    assert "is not a regular file" in failure(capsys, "predict", run, run.parent)


def test_weights__of_another_type_are_called_that(trained, tmp_path, capsys):
    state = load_file(trained / "run" / "model.safetensors")
    save_file({name: value.to(torch.int32) for name, value in state.items()}, tmp_path / "w.safetensors")
    message = failure(capsys, "train", "digits", *QUICK, "--init", tmp_path / "w.safetensors")
    assert "is int32 in the file and float32 in the model; convert the weights to floats" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["settings"].update(epochs="many"), "epochs cannot be 'many'"),
        (lambda c: c["settings"].update(epochs=LONG), "epochs cannot be 'AAA"),
        (lambda c: c["settings"].update(epochs={"a": [1]}), "epochs cannot be {'a': [1]}"),
        (lambda c: c["settings"].update(accumulate=None), "accumulate cannot be empty"),
        (lambda c: c["settings"].update(nonsense=1), "there is no setting 'nonsense'"),
        (lambda c: c["settings"].update({1: 1}), "there is no setting 1"),
        (lambda c: c["origin"].update(nonsense="flag"), "there is no setting 'nonsense'"),
        (lambda c: c.pop("origin"), "'origin' is missing"),
        (lambda c: c.update(origin=3), "config.yaml"),
        (lambda c: c.update(origin=["a"]), "config.yaml"),
        (lambda c: c.update(settings=[1]), "config.yaml"),
        (lambda c: c["settings"].update(batch_size=2**40), "--batch-size is"),
        (lambda c: c["settings"].update(data="\0"), r"\x00 does not exist"),
        (lambda c: c["settings"].update(data=5), "data cannot be 5"),
    ],
)
def test_run_config__that_is_damaged_is_said_without_jargon(stopped, capsys, change, words):
    content = yaml.safe_load((stopped / "config.yaml").read_text())
    change(content)
    (stopped / "config.yaml").write_text(yaml.safe_dump(content))
    message = failure(capsys, "train", "--resume", stopped)
    assert words in message
    assert "Parser key" not in message
    assert "<class" not in message
    assert len(message) < 1100


def test_run_config__that_is_a_bomb_or_a_pipe_is_refused(run, capsys):
    config = run / "config.yaml"
    config.write_text(BOMB)
    for argv in (["train", "--resume", run], ["eval", run], ["train", "--init", run]):
        failure(capsys, *argv)
    config.unlink()
    os.mkfifo(config)
    assert "contains no run" in failure(capsys, "eval", run)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "a,b\n",
        "key,label,class,split\nx\n",
        "key,label,class,split\nx,1,a,everything\n",
        'key,label,class,split\n"' + "x" * 200_000,
    ],
)
def test_split__that_is_damaged_is_one_sentence(stopped, capsys, content):
    (stopped / "split.csv").write_text(content)
    for argv in (["eval", stopped], ["train", "--resume", stopped]):
        assert "split.csv" in failure(capsys, *argv)


def test_checkpoint__that_is_packed_or_a_pipe_is_refused(stopped, capsys):
    last = stopped / "checkpoints" / "last.ckpt"
    last.unlink()
    os.mkfifo(last)
    assert "is not a regular file" in failure(capsys, "train", "--resume", stopped)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda index: index.update(top=10**12), "truncated or mixed up"),
        (lambda index: index.update(top="5"), "truncated or mixed up"),
        (lambda index: index.update(grid=[10**9, 10**9]), "truncated or mixed up"),
        (lambda index: index.update(grid=7), "index.json"),
        (lambda index: index.update(grid=[[1], 2]), "truncated or mixed up"),
        (lambda index: index["keys"].append("another"), "index.json"),
        (lambda index: index.update(classes=[[1], 2, 3]), "index.json"),
        (lambda index: index.update(trained_on=[["a"]]), "index.json"),
        (lambda index: index.update(keys={"a": 1}), "index.json"),
        (lambda index: index.update(covered=["square"]), "index.json"),
    ],
)
def test_label_maps__whose_index_lies_are_refused(labelled, tmp_path, capsys, change, words):
    maps = Path(shutil.copytree(labelled / "maps", tmp_path / "maps"))
    change_json(maps / "index.json", change)
    argv = ["train", labelled / "photos", "--method", "token-labeling", "--labels", maps, *QUICK]
    assert words in failure(capsys, *argv)


def test_label_maps__whose_arrays_are_odd_are_refused(labelled, tmp_path, capsys):
    maps = Path(shutil.copytree(labelled / "maps", tmp_path / "maps"))
    argv = ["train", labelled / "photos", "--method", "token-labeling", "--labels", maps, *QUICK]
    header = b"{'descr': '<f2', 'fortran_order': False, 'shape': (%s,), }"
    for shape in (b"10" + b"0" * 30, b"99999999999999"):
        text = (header % shape).ljust(117) + b"\n"
        (maps / "values.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        assert "values.npy" in failure(capsys, *argv)
    np.save(maps / "values.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "values.npy" in failure(capsys, *argv)
    (maps / "values.npy").unlink()
    os.mkfifo(maps / "values.npy")
    assert "is not a regular file" in failure(capsys, *argv)


def test_sources__with_odd_names_are_user_errors(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for name in ("a\0b", str(tmp_path / "loop")):
        with pytest.raises(UserError, match="does not exist"):
            open_images(name)
