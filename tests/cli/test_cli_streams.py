"""Output that a stream's encoding lacks characters for, or that nobody reads any more."""

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paucal.cli import main as program
from paucal.cli import streams
from paucal.cli.main import main
from paucal.cli.streams import ERROR_HANDLER, tolerant_streams
from paucal.runner.console import Console
from paucal.runner.plain_console import PlainConsole
from paucal.types import UserError

NAMES = ("猫", "Hündchen")
ENCODINGS = ["ascii", "latin-1", "cp1252", "cp437", "shift_jis", "gb2312", "utf-8", "utf-16", "utf-8-sig", "cp037"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Images of classes whose names no code page of 8 bits has."""
    root = tmp_path_factory.mktemp("named") / "photos"
    generator = np.random.default_rng(0)
    for level, name in zip((60, 180), NAMES, strict=True):
        (root / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.normal(level, 20, (20, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"é{number}.png")
    return root


@contextlib.contextmanager
def streams_of(encoding: str):
    """Yield what is written to both streams, as bytes; the streams have an encoding."""
    written = {name: io.BytesIO() for name in ("stdout", "stderr")}
    texts = {name: io.TextIOWrapper(raw, encoding=encoding, newline="") for name, raw in written.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, text in texts.items():
            patch.setattr(sys, name, text)
        yield written
        for text in texts.values():
            text.detach()


def escaped(text: str, encoding: str) -> str:
    """Return what a stream shows of a text, by a slow and simple reader."""
    shown = ""
    for character in text:
        try:
            character.encode(encoding)
            shown += character
        except UnicodeEncodeError:
            shown += character.encode("ascii", "backslashreplace").decode()
    return shown


@given(text=st.text(st.characters(exclude_categories=["Cs"])), encoding=st.sampled_from(ENCODINGS))
def test_text__is_escaped_where_the_encoding_lacks_it(text, encoding):
    with streams_of(encoding) as written, tolerant_streams():
        sys.stdout.write(text)
        sys.stdout.flush()
        content = written["stdout"].getvalue()
    shown = escaped(text, encoding).encode(encoding)  # Shift JIS writes a yen as a backslash
    assert content.decode(encoding) == shown.decode(encoding)


@given(st.lists(st.binary(max_size=4) | st.sampled_from(NAMES)), st.sampled_from(["ascii", "cp1252", "utf-8"]))
def test_names__that_are_no_text_come_out_as_their_bytes(parts, encoding):
    texts = [part if isinstance(part, str) else part.decode("utf-8", "surrogateescape") for part in parts]
    expected = b""
    for text in texts:
        for character in text:
            if 0xDC80 <= ord(character) <= 0xDCFF:
                expected += bytes([ord(character) - 0xDC00])
            else:
                expected += escaped(character, encoding).encode(encoding)
    with streams_of(encoding) as written, tolerant_streams():
        print(*texts, sep="", end="")
        sys.stdout.flush()
        assert written["stdout"].getvalue() == expected


def test_surrogates__that_stand_for_no_byte_are_escaped():
    with tolerant_streams():
        assert "a\ud800\udcff".encode("utf-8", ERROR_HANDLER) == b"a\\ud800\xff"
        assert "\udcff".encode("utf-16-le", ERROR_HANDLER).decode("utf-16-le") == "\\udcff"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-16"])
@pytest.mark.parametrize("form", ["table", "json"])
def test_check__shows_names_that_the_stream_lacks(form, encoding, photos):
    with streams_of(encoding) as written:
        assert main(["check", str(photos), "--format", form]) == 0
        shown = {name: raw.getvalue().decode(encoding) for name, raw in written.items()}
    for name in NAMES:
        word = json.dumps(name).strip('"') if form == "json" else escaped(name, encoding)
        assert word in shown["stdout"]
    assert "Traceback" not in "".join(shown.values())


def test_mistakes_and_help__come_through_any_stream(tmp_path):
    with streams_of("ascii") as written:
        assert main(["check", str(tmp_path / NAMES[0])]) == 2
        with pytest.raises(SystemExit):
            main(["train", "--help"])
        assert main(["train", f"--{NAMES[0]}"]) == 2
        shown = written["stderr"].getvalue().decode("ascii")
        assert "usage: paucal train" in written["stdout"].getvalue().decode("ascii")
    assert shown.count("error: ") == 2
    assert shown.count("\\u732b") == 2


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_run__says_everything_through_any_stream(encoding, photos, tmp_path):
    flags = ["--model", "vit_mini", "--model-args", "depth=1", "--img-size", "16", "--epochs", "1", "-j", "0"]
    with streams_of(encoding) as written:
        assert main(["train", str(photos), *flags, "--init", "none", "--output", str(tmp_path / "run")]) == 0
        assert main(["predict", str(tmp_path / "run"), str(photos)]) == 0
        content = written["stdout"].getvalue().decode(encoding)
    answers = list(csv.DictReader(content[content.index("path,predicted") :].splitlines()))
    assert {row["predicted"] for row in answers} <= {escaped(name, encoding) for name in NAMES}
    assert NAMES[0] in (tmp_path / "run" / "split.csv").read_text("utf-8")


@contextlib.contextmanager
def closed_pipe():
    """Let nobody read the output; yield its descriptor."""
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.MonkeyPatch.context() as patch, open(writer, "w", encoding="utf-8") as stream:
        patch.setattr(sys, "stdout", stream)
        yield stream


def test_closed_pipe__ends_a_verb_without_a_word(photos, tmp_path, capsys):
    calls = [
        ["--help"],
        ["models", "vit_mini"],
        ["recipes"],
        ["cache"],
        ["completion", "bash"],
        ["check", str(photos)],
        ["check", str(photos), "--format", "json"],
        ["train", str(photos), "--print-config", "--model", "vit_mini", "--init", "none"],
        ["runs", str(photos)],
    ]
    for words in calls:
        with closed_pipe():
            assert main(words) in (0, 141), words
        assert capsys.readouterr().err == "", words


def test_closed_pipe__lets_a_run_come_to_its_end(photos, tmp_path, capsys):
    flags = ["--model", "vit_mini", "--model-args", "depth=1", "--img-size", "16", "--epochs", "1", "-j", "0"]
    with closed_pipe():
        assert main(["train", str(photos), *flags, "--init", "none", "--output", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "summary.json").exists()
    with closed_pipe():
        assert main(["predict", str(tmp_path / "run"), str(photos), "--top-k", "1"]) in (0, 141)
    assert "Broken pipe" not in capsys.readouterr().err


def answers(monkeypatch, act) -> int:
    monkeypatch.setattr(program, "_dispatch", lambda words: act() or 0)
    return main(["models"])


def test_closed_pipe__hides_no_mistake(monkeypatch, capsys):
    def fails():
        Console().say("a line")
        raise UserError("it does not do.")

    with closed_pipe():
        assert answers(monkeypatch, fails) == 2
    assert capsys.readouterr().err == "error: it does not do.\n"

    def breaks():
        raise BrokenPipeError(32, "Broken pipe")  # another pipe, as of a loader process

    assert answers(monkeypatch, breaks) == 2
    assert "Broken pipe" in capsys.readouterr().err


def test_closed_pipe__is_noticed_at_the_last_flush(monkeypatch, capsys):
    with closed_pipe():
        assert answers(monkeypatch, lambda: print("buffered")) == 0
    with closed_pipe():
        assert answers(monkeypatch, lambda: PlainConsole().print("a") or 1) == 141
    with closed_pipe():
        assert answers(monkeypatch, lambda: PlainConsole().print("a") or 130) == 130
    assert capsys.readouterr().err == ""


def test_stream__that_was_closed_before_is_none(monkeypatch, photos):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["check", str(photos)]) == 0
    assert main(["check", str(photos / "gone")]) == 2
    for stream in (sys.stdout, sys.stderr):
        stream.close()


def test_ascii_names__begin_the_command_anew_in_utf8(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execv", lambda *words: calls.append(words))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "paucal.cli.main", "check", "x"])
    monkeypatch.setattr(streams.sys, "getfilesystemencoding", lambda: "utf-8")
    streams.restart_in_utf8()
    assert calls == []
    monkeypatch.setattr(streams.sys, "getfilesystemencoding", lambda: "ascii")
    monkeypatch.setenv("PYTHONUTF8", "0")
    streams.restart_in_utf8()
    assert calls == [(sys.executable, [sys.executable, "-X", "utf8", "-m", "paucal.cli.main", "check", "x"])]
    assert os.environ["PYTHONUTF8"] == "1"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="names of files are UTF-16 there")
def test_ascii_locale__reads_names_as_any_other(photos, tmp_path):
    rows = [f"{path.relative_to(photos).as_posix()},{path.parent.name}" for path in sorted(photos.rglob("*.png"))]
    (tmp_path / "ß.csv").write_text("\n".join(["image,label", *rows]), encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in ([str(photos)], [str(tmp_path / "ß.csv"), "--data-root", str(photos)]):
        command = [sys.executable, "-m", "paucal.cli.main", "check", *words]
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert all(name.encode() in done.stdout for name in NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["models"], ["train", "--help"], ["recipes"], ["completion", "bash"]])
def test_head__ends_a_call_without_a_word(words):
    command = [sys.executable, "-m", "paucal.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode in (0, 141)
