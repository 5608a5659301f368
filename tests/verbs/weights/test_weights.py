"""Weights in one file: packed, carried, checked by loading, raced by a training run; hostile files are refused."""

import json
import pickle
import zipfile
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

import paucal
from paucal.cli.main import main
from paucal.models.named import open_named
from paucal.models.published import read_timm
from paucal.models.weights import table
from paucal.models.weights.adding import CARD_ENTRY, LICENCE_ENTRY, WEIGHTS_ENTRY
from paucal.models.weights.local import input_of_weights
from paucal.models.weights.store import find_added, weights_folder
from paucal.models.weights.table import PretrainedWeights
from paucal.runner import initial_weights
from paucal.verbs.weights.listing import list_weights
from tasks.classification.auto_tune.carried import install
from tasks.classification.auto_tune.test_auto_tune import photos

NAME = "test_resnet.r160_in1k"


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """A machine without packages of weights, without a cache and without a network."""
    install(tmp_path, monkeypatch, ())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(5)
    model = timm.create_model(NAME)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "resnet.pth")
    return tmp_path / "resnet.pth", model


def refused(capsys, *words) -> str:
    assert main(["weights", *map(str, words)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Traceback" not in said
    return said


def test_add__checks_a_file_and_uses_it(file):
    path, model = file
    card = paucal.add_weights(path, model=NAME, licence="Apache-2.0", source="a test", mean=[0.1] * 3, std=[0.2] * 3)
    weights = read_timm(NAME)
    assert all(torch.equal(weights.tree[name], value) for name, value in model.state_dict().items())
    assert (card.classes, card.source) == (1000, "a test")
    assert card.content.name == f"{card.sha256}.safetensors"
    assert input_of_weights(NAME).mean == (0.1, 0.1, 0.1)
    assert [(one.place, one.use) for one in list_weights()] == [("added", "train")]
    photo = Image.new("RGB", (160, 160), "red")
    opened = open_named(NAME)
    own = model.eval()(opened.prepared([photo]).cpu()).softmax(1)
    assert torch.allclose(opened.probabilities([photo]), own, atol=1e-6)


def test_add__says_with_which_values_it_normalises_where_nothing_states_them(file, capsys):
    path, _ = file
    words = ["weights", "add", str(path), "--licence", "MIT"]
    assert main([*words, "--model", "test_resnet"]) == 0
    assert "note: images are normalised with --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5; give both" in capsys.readouterr().out
    paucal.remove_weights("test_resnet")
    paucal.add_weights(path, model="test_resnet", licence="MIT", mean=[0.1] * 3, std=[0.2] * 3)
    assert "normalised" not in capsys.readouterr().out


def test_archive__is_carried_and_raced(file, tmp_path, monkeypatch):
    path, _ = file
    archive = paucal.pack_weights(path, model=NAME, licence="Apache-2.0", output=tmp_path / "carried.weights.zip")
    with zipfile.ZipFile(archive) as opened:
        assert sorted(opened.namelist()) == sorted([CARD_ENTRY, LICENCE_ENTRY, WEIGHTS_ENTRY])
        assert "Apache License" in opened.read(LICENCE_ENTRY).decode()
    assert archive.stat().st_size < 0.6 * path.stat().st_size  # 16 bits, since the outputs agree
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    install(tmp_path / "other", monkeypatch, ("resnet10t",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert initial_weights.choose_weights(None, "cpu", 64).candidates == ("resnet10t.c3_in1k",)
    paucal.add_weights(archive)
    assert read_timm(NAME).tree["conv1.0.weight"].dtype == torch.float16
    assert initial_weights.choose_weights(None, "cpu", 64).candidates == ("resnet10t.c3_in1k", NAME)
    data = photos(tmp_path / "photos", each=15)
    run = paucal.train(data, epochs=0, img_size=32, workers=0, output=tmp_path / "run").folder
    race = json.loads((run / "rungs.json").read_text())["race"]
    assert [step["name"] for step in race] == ["resnet10t.c3_in1k", NAME]
    assert paucal.remove_weights(NAME) > 0
    assert list(weights_folder().iterdir()) == []


def test_added_weights__are_used_by_name_alone_where_the_licence_has_terms(file):
    path, _ = file
    paucal.add_weights(path, model="test_resnet", licence="CC-BY-NC-4.0")
    assert initial_weights.choose_weights(None, "cpu", 64).candidates == ()
    choice = initial_weights.choose_weights("test_resnet", "cpu", 64)
    assert choice.candidates == ("test_resnet",)
    assert "CC-BY-NC-4.0, has special terms" in choice.remark
    assert [one.use for one in list_weights()] == ["train --model"]


def test_weights_of_the_table_with_terms__are_never_chosen(monkeypatch):
    rows = (PretrainedWeights("a", "cc-by-nc-4.0", 1, "x"), PretrainedWeights("b", "MIT", 1, "x"))
    monkeypatch.setattr(table, "CANDIDATES", rows)
    monkeypatch.setattr("paucal.models.weights.local.location_of", lambda one: "cache")
    assert initial_weights.choose_weights(None, "cpu", 64).candidates == ("b",)


def test_add__refuses_what_is_not_the_model(file, tmp_path, capsys):
    path, model = file
    assert "does not contain the weights of resnet18" in refused(
        capsys, "add", path, "--model", "resnet18", "--licence", "MIT"
    )
    state = dict(model.state_dict())
    torch.save({name: value for name, value in state.items() if "running_var" not in name}, tmp_path / "part.pth")
    said = refused(capsys, "add", tmp_path / "part.pth", "--model", NAME, "--licence", "Apache-2.0")
    assert "running_var" in said
    state["fc.weight"] = state["fc.weight"] * float("nan")
    torch.save(state, tmp_path / "nan.pth")
    assert "NaN or infinite values" in refused(
        capsys, "add", tmp_path / "nan.pth", "--model", NAME, "--licence", "Apache-2.0"
    )
    assert not weights_folder().exists()


def test_add__refuses_a_licence_that_is_missing_or_wrong(file, capsys):
    path, _ = file
    assert "--licence is missing" in refused(capsys, "add", path, "--model", NAME)
    assert "--model is missing" in refused(capsys, "add", path, "--licence", "MIT")
    assert "timm states 'apache-2.0'" in refused(capsys, "add", path, "--model", NAME, "--licence", "MIT")
    assert "licence" in refused(capsys, "add", path, "--model", NAME, "--licence", "a\x1b[1m")
    assert "has no weights 'mine'" in refused(capsys, "add", path, "--model", "test_resnet.mine", "--licence", "MIT")
    assert "--licence-text" in refused(capsys, "pack", path, "--model", "test_resnet", "--licence", "MIT")


class Malicious:
    def __reduce__(self):
        return (exec, ("raise SystemExit('this ran')",))


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_add__runs_no_code(kind, tmp_path, capsys):
    path = tmp_path / "bad.pth"
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"conv1.weight": Malicious()}))
    else:
        torch.save({"conv1.weight": Malicious()}, path)
    said = refused(capsys, "add", path, "--model", NAME, "--licence", "Apache-2.0")
    assert "could run code when opened" in said


def test_add__refuses_a_file_that_is_cut_short(file, tmp_path, capsys):
    path, _ = file
    content = path.read_bytes()
    for share in (0, 10, len(content) // 2, len(content) - 10):
        path.write_bytes(content[:share])
        refused(capsys, "add", path, "--model", NAME, "--licence", "Apache-2.0")


def rewritten(archive: Path, to: Path, compress=zipfile.ZIP_STORED, **parts) -> Path:
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(to, "w", compress) as new:
        for name in old.namelist():
            new.writestr(name, parts.get(name.split(".")[0], old.read(name)))
    return to


def test_archive__that_is_damaged_or_hostile_is_refused(file, tmp_path, capsys):
    path, _ = file
    archive = paucal.pack_weights(path, model=NAME, licence="Apache-2.0", output=tmp_path / "good.weights.zip")
    content, bad = archive.read_bytes(), tmp_path / "bad.weights.zip"
    for share in (0, 100, len(content) // 2, len(content) - 10):
        bad.write_bytes(content[:share])
        assert "damaged" in refused(capsys, "add", bad)
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    bad.write_bytes(flipped)
    assert "damaged" in refused(capsys, "add", bad)
    with zipfile.ZipFile(archive) as opened:
        card = json.loads(opened.read(CARD_ENTRY))
    assert "checksum" in refused(capsys, "add", rewritten(archive, bad, LICENCE=b"Anything is allowed."))
    assert "compressed" in refused(capsys, "add", rewritten(archive, bad, zipfile.ZIP_DEFLATED))
    changes = (
        {"licence": ""},
        {"licence": 3},
        {"name": "../../up"},
        {"size": -1},
        {"more": 1},
    )
    for change in changes:
        said = refused(capsys, "add", rewritten(archive, bad, card=json.dumps({**card, **change}).encode()))
        assert "has an invalid card" in said
    odd = json.dumps({**card, "input": {"mean": "x"}}).encode()
    assert "has mean 'x'" in refused(capsys, "add", rewritten(archive, bad, card=odd))
    mit = json.dumps({**card, "licence": "MIT"}).encode()
    message = refused(capsys, "add", rewritten(archive, bad, card=mit))
    assert "'MIT', but timm states 'apache-2.0'" in message
    assert "or use a weights archive whose metadata state this licence" in message  # an archive takes no --licence
    other = json.dumps({**card, "name": "resnet18"}).encode()
    assert "does not contain the weights of resnet18" in refused(capsys, "add", rewritten(archive, bad, card=other))
    assert "good.weights.zip has its own card: remove --model" in refused(capsys, "add", archive, "--model", NAME)
    assert not weights_folder().exists()


def test_content__that_has_changed_is_refused(file):
    path, _ = file
    card = paucal.add_weights(path, model=NAME, licence="Apache-2.0")
    content = bytearray(card.content.read_bytes())
    content[-1] ^= 1
    card.content.write_bytes(content)
    with pytest.raises(paucal.UserError, match=f"paucal weights remove {NAME}"):
        read_timm(NAME)
    with pytest.raises(paucal.UserError, match="have already been added"):
        paucal.add_weights(path, model=NAME, licence="Apache-2.0")
    assert find_added(NAME) is not None


def test_precision__stays_where_16_bits_would_answer_otherwise(file, tmp_path):
    path, model = file
    state = model.state_dict()
    state["fc.bias"] = torch.full_like(state["fc.bias"], 1e5)  # more than 16 bits hold
    torch.save(state, path)
    archive = paucal.pack_weights(path, model=NAME, licence="Apache-2.0", output=tmp_path / "a.weights.zip")
    assert paucal.add_weights(archive).content.stat().st_size > 0.9 * path.stat().st_size


def test_remove__refuses_what_was_not_added(capsys):
    assert "no weights of 'resnet18' were added" in refused(capsys, "remove", "resnet18")
    assert "takes no name" in refused(capsys, "list", "resnet18")
    assert "unknown action" in refused(capsys, "fetch", "resnet18")
