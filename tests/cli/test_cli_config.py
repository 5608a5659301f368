"""Files of `--config`: every value as its flag has it, whatever YAML makes of the word."""

import typing
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.calls import failure
from paucal.cli.arguments import read_config
from paucal.cli.training import parse_run_arguments
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.training_settings import TrainSettings
from paucal.settings.options import flag_words, setting_fields
from paucal.tasks.detection.settings import DetectSettings
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.types import UserError

KINDS = {"train": TrainSettings, "pretrain": PretrainSettings, "segment": SegmentSettings, "detect": DetectSettings}


def read(path, content: str, verb: str = "train") -> dict[str, Any]:
    """Return the settings of a config."""
    path.write_text(content, encoding="utf-8")
    return read_config(str(path), typing.get_type_hints(KINDS[verb]), verb)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("img_size: 32", {"img_size": [32]}),
        ("img-size: [32, 48]", {"img_size": [32, 48]}),
        ("img_size:\n- 32\n- 48", {"img_size": [32, 48]}),
        ("add: locality", {"add": ["locality"]}),
        ("logger: tensorboard", {"logger": ["tensorboard"]}),
        ("model_args: output_stride=8", {"model_args": ["output_stride=8"]}),
        ("model_args: {output_stride: 8, channels: [8, 16]}", {"model_args": ["output_stride=8", "channels=[8, 16]"]}),
        ("model_args:\n- depth: 2\n- bias: no", {"model_args": ["depth=2", "bias=no"]}),
        ("compile: yes\noverwrite: Off", {"compile": True, "overwrite": False}),
        ("data: no", {"data": "no"}),
        ("data: 2024", {"data": "2024"}),
        ("output: 010\nseed: 010", {"output": "010", "seed": 10}),
        ("output: 2024-01-01", {"output": "2024-01-01"}),
        ("time: 1:30:00", {"time": "1:30:00"}),
        ("group_by: on", {"group_by": "on"}),
        ("lr: 1e-3", {"lr": 0.001}),
        ("lr: '0.1'", {"lr": 0.1}),
        ("batch_size: auto", {"batch_size": "auto"}),
        ("batch_size: 8", {"batch_size": 8}),
        ("freeze: 2", {"freeze": 2}),
        ("epochs:\nlr: ~\nmodel: null\nseed: 1", {"seed": 1}),
        ("model: 'null'", {"model": "null"}),
        ("\ufeffmodel: vit_mini", {"model": "vit_mini"}),
    ],
)
def test_value__is_what_its_flag_would_have(content, expected, tmp_path):
    assert read(tmp_path / "c.yaml", content) == expected


def test_word__of_yaml_is_a_word_where_words_are_expected(tmp_path):
    assert read(tmp_path / "c.yaml", "masks: off", "detect") == {"masks": "off"}


@pytest.mark.parametrize("verb", KINDS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "'c.yaml' contains no settings; expected lines such as 'epochs: 30'."),
        ("# epochs: 3\n", "contains no settings"),
        ("{}", "contains no settings"),
        ("---\n", "contains no settings"),
        ("hflip: yes", "--hflip: expected a number, got 'yes'"),
        ("compile: 1", "--compile: expected true or false, got '1'"),
        ("epochs: [3]", "--epochs: expected a whole number, got '[3]'"),
        ("epochs: 3.0", "--epochs: expected a whole number, got '3.0'"),
        ("epochs: {a: 3}", "--epochs: expected a whole number, got '{a: 3}'"),
        ("epochs: no", "--epochs: expected a whole number, got 'no'"),
        ("lr: .nan", "--lr: expected a number, got '.nan'"),
        ("img_size: [[32]]", "--img-size: expected a whole number, got '[[32]]'"),
        ("img_size: []", "--img-size: expected a whole number, got '[]'"),
        ("logger: off", "--logger: expected one of 'tensorboard', 'mlflow', 'wandb', got 'off'"),
        (
            "logger: [wandb, tensor]",
            "--logger: expected one of 'tensorboard', 'mlflow', 'wandb', got '[wandb, tensor]'",
        ),
        ("model: [a, b]", "--model: expected text, got '[a, b]'"),
        ("batch_size: most", "--batch-size: expected a whole number"),
        ("epochs: 3\nepochs: 4", "the key 'epochs' occurs twice at line 2, column 1"),
        ("yes: 3", "unknown key 'yes' in the config"),
        ("? [a]\n: 3", "--config: 'c.yaml' cannot be read"),
        ("config: c.yaml", "unknown key 'config'"),
    ],
)
def test_value__of_another_kind_is_one_sentence_with_its_key(verb, content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as problem:
        read(Path("c.yaml"), content, verb)
    assert message in str(problem.value)
    assert str(problem.value).endswith(".")


@pytest.mark.parametrize("content", ["time: 10", "time: 10\nepochs: 1", "time: yes", "time_limit: 1:30"])
def test_time__without_a_unit_is_refused(content, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(content)
    flags = ["--model", "vit_mini", "--init", "none", "--print-config"]
    message = failure(capsys, "train", "digits", "--config", tmp_path / "c.yaml", *flags)
    name, value = content.split()[0].strip(":").replace("_", "-"), content.split()[1]
    assert f"--{name} is '{value}', expected a time such as 10m, 600s" in message


def test_flag__wins_over_a_config_and_the_last_config_over_the_first(tmp_path):
    (tmp_path / "first.yaml").write_text("epochs: 1\nlr: 0.1\nseed: 5")
    (tmp_path / "c.yaml").write_text("lr: 0.2\nmin_lr: 0.01")
    argv = ["--lr", "0.3", f"--config={tmp_path / 'first.yaml'}", "--config", str(tmp_path / "c.yaml")]
    _, origin, found = parse_run_arguments("train", "", TrainSettings, argv)
    assert found == {"epochs": 1, "lr": 0.3, "seed": 5, "min_lr": 0.01}
    assert origin == dict.fromkeys(("epochs", "seed", "min_lr"), "config") | {"lr": "flag"}


WORDS = ["yes", "No", "on", "off", "true", "010", "1e3", "1:30", "2020-01-01", "a b", ".5", "é"]


def of_kind(hint: Any) -> st.SearchStrategy:
    """Return values of a type, as a slow and simple reader of types has them."""
    if typing.get_origin(hint) is list:
        return st.lists(of_kind(typing.get_args(hint)[0]), min_size=1, max_size=3)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(typing.get_args(hint))
    if members := [member for member in typing.get_args(hint) if member is not type(None)]:
        return st.one_of([of_kind(member) for member in members])
    numbers = {int: st.integers(0, 10**6), float: st.floats(0, 10**6), bool: st.booleans()}
    return numbers[hint] if hint in numbers else st.sampled_from(WORDS)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_config__of_any_values_says_what_flags_say(data, tmp_path_factory):
    verb = data.draw(st.sampled_from(list(KINDS)))
    hints, known = typing.get_type_hints(KINDS[verb]), sorted(setting_fields(KINDS[verb]))
    names = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
    values = {name: data.draw(of_kind(hints[name]), label=name) for name in names}
    false = {name: False for name, value in values.items() if value is False}  # no flag says so
    typed = [word for name, value in values.items() if name not in false for word in flag_words(name, value)]
    expected = parse_run_arguments(verb, "", KINDS[verb], typed)[2] | false
    one = {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in values.items()}
    path = tmp_path_factory.mktemp("config") / "c.yaml"
    assert read(path, yaml.safe_dump(values), verb) == expected
    assert read(path, yaml.safe_dump(one, allow_unicode=True), verb) == expected
    words = "\n".join(f"{name}: {value}" for name, value in one.items())  # as people write it, without quotes
    assert read(path, words.replace("'", ""), verb) == expected


def test_settings_of_a_run__that_it_chose_to_have_no_value_are_given_as_such(tmp_path):
    content = {
        "settings": {"lr": 1e-3, "freeze": None, "layer_decay": None, "init": "auto"},
        "origin": {"lr": "auto: a rule", "freeze": "auto: chosen by trials", "layer_decay": "default", "init": "flag"},
    }
    found = read(tmp_path / "c.yaml", yaml.safe_dump(content))
    assert found == {"lr": 1e-3, "freeze": None, "init": "auto"}
    with pytest.raises(UserError, match="unknown key 'frieze'"):
        read(tmp_path / "c.yaml", "frieze:")
