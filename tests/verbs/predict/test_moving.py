"""Videos and a watched folder: no frame lost or doubled, also after an interruption, and damaged files named."""

import csv
import os
import platform
import sys
import time
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import paucal
from paucal.cli.main import main
from paucal.data.decode import DecodeOptions
from paucal.models.tasks import DETECTION
from paucal.runner.console import SilentConsole
from paucal.verbs.predict import moving, video
from paucal.verbs.predict.journal import PredictionTable
from paucal.verbs.predict.settings import OutputSettings, PredictSettings
from paucal.verbs.predict.video import VideoLedger, read_frames
from processes import exit_codes

av = pytest.importorskip("av", reason="PyAV is not installed (the extra `video`)")
BITS, CELL, RATE = 12, 8, 30


def numbered(number: int) -> Image.Image:
    """Draw a frame whose number can be read from black and white cells in its first row; the rest is grey."""
    pixels = np.full((48, BITS * CELL, 3), 128, np.uint8)
    for bit in range(BITS):
        pixels[:CELL, bit * CELL : (bit + 1) * CELL] = 255 * (number >> bit & 1)
    return Image.fromarray(pixels)


def number_in(picture: Image.Image) -> int:
    cells = np.asarray(picture.convert("L"))[CELL // 2, CELL // 2 :: CELL]
    return sum(int(value > 127) << bit for bit, value in enumerate(cells))


def write_video(path, frames, pts=None, fast_start=False):
    options = {"movflags": "faststart"} if fast_start else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("libx264" if "libx264" in av.codecs_available else "mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = BITS * CELL, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000 if pts else RATE)
        for number in range(frames):
            frame = av.VideoFrame.from_image(numbered(number))
            frame.pts, frame.time_base = (pts[number] if pts else number), stream.codec_context.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def minute(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("video") / "minute.mp4", 60 * RATE, fast_start=True)


@pytest.fixture(scope="module")
def run(digit_run):
    return digit_run


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_frames__each_is_read_once_and_in_order(minute):
    ledger = VideoLedger()
    frames = [(frame.number, number_in(frame.image)) for frame in read_frames(str(minute), 0, ledger)]
    assert frames == [(number, number) for number in range(1800)]
    assert (ledger.frames, ledger.sampled, ledger.problem) == (1800, 1800, "")


def test_frames__every_second(minute):
    frames = list(read_frames(str(minute), 1.0, VideoLedger()))
    assert [number_in(frame.image) for frame in frames] == list(range(0, 1800, RATE))
    assert [frame.time for frame in frames] == [f"{second}.000" for second in range(60)]


def test_frames__of_a_variable_rate_are_chosen_by_time(tmp_path):
    stamps = np.cumsum(np.random.default_rng(0).integers(5, 400, 200)).tolist()
    path = write_video(tmp_path / "variable.mkv", 200, pts=stamps)
    begun, due, expected = stamps[0], 0, []
    for number, stamp in enumerate(stamps):
        if stamp - begun >= due:
            expected.append(number)
            due = ((stamp - begun) // 1000 + 1) * 1000
    assert [number_in(frame.image) for frame in read_frames(str(path), 1.0, VideoLedger())] == expected


def test_frames__are_turned_as_the_video_says(tmp_path):
    path = write_video(tmp_path / "turned.mp4", 3)
    content = path.read_bytes()
    one, minus = (1 << 16).to_bytes(4), (-(1 << 16)).to_bytes(4, signed=True)
    zero = bytes(4)
    place = content.index(one + zero * 3 + one, content.index(b"tkhd"))
    path.write_bytes(content[:place] + zero + one + zero + minus + zero + content[place + 20 :])
    *_, last = read_frames(str(path), 0, VideoLedger())
    assert last.image.size == (48, BITS * CELL)  # a quarter turn to the right: the first row is the right column
    assert number_in(last.image.rotate(90, expand=True)) == 2


def test_damaged_tail__keeps_what_can_be_read(minute, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content = minute.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) * 2 // 3])
    words = ["predict", str(run), "cut.mp4", "--output", "answers.csv"]
    assert main(words) == 2
    assert "is incomplete" in capsys.readouterr().err
    assert main([*words, "--on-bad-image", "skip"]) == 0
    frames = [int(row["frame"]) for row in read(tmp_path / "answers.csv")]
    assert frames == list(range(0, RATE * len(frames), RATE))
    assert 20 < len(frames) < 60
    assert not (tmp_path / "answers.csv.part").exists()


def test_video__without_frames_is_refused(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "empty.mkv", 0)
    (tmp_path / "zero.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("no video")
    for name in ("empty.mkv", "zero.mp4", "text.mp4", "missing.mp4"):
        assert main(["predict", str(run), name]) == 2
        said = capsys.readouterr().err
        assert name in said
        assert "Traceback" not in said


def predict_until_killed(number, words):
    add, calls = PredictionTable.add, []

    def dying(self, rows):
        calls.append(rows)
        if len(calls) == 4:
            self._file.write(b"minute.mp4,9")  # a row that a dying process has begun
            self._file.flush()
            os._exit(9)
        add(self, rows)

    PredictionTable.add = dying
    main(words)


def test_interrupted__goes_on_with_the_same_table(minute, run, tmp_path, monkeypatch):
    monkeypatch.chdir(minute.parent)
    whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
    words = ["predict", str(run), minute.name, "--batch-size", "7", "--output"]
    assert main([*words, str(whole)]) == 0
    assert exit_codes(predict_until_killed, [*words, str(killed)]) == [9]
    assert len(killed.read_text().splitlines()) == 1 + 3 * 7 + 1
    assert main([*words, str(killed)]) == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert [int(row["frame"]) for row in read(whole)] == list(range(0, 1800, RATE))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the process as Linux tells it")
def test_table__has_each_frame_of_a_minute_once_and_memory_does_not_grow(minute, run, tmp_path, monkeypatch):
    monkeypatch.chdir(minute.parent)
    held, add = [], PredictionTable.add

    def measured(self, rows):
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        add(self, rows)

    monkeypatch.setattr(PredictionTable, "add", measured)
    words = ["predict", str(run), minute.name, "--every", "frame", "--batch-size", "8", "--output"]
    assert main([*words, str(tmp_path / "all.csv")]) == 0
    assert [int(row["frame"]) for row in read(tmp_path / "all.csv")] == list(range(1800))
    assert len(held) == 225
    later_frames = (225 - 50) * 8 * BITS * CELL * 48 * 3  # bytes, had they been kept
    assert max(held[-25:]) - max(held[25:50]) < later_frames / 3


def test_camera__is_answered_with_the_time_of_day_until_it_ends(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "lavfi" not in av.formats_available:
        pytest.skip("this PyAV has no virtual camera (lavfi)")
    monkeypatch.setitem(video._CAMERA_INPUTS, platform.system(), ("testsrc=duration=1:rate=10:size=64x{}", "lavfi"))
    before = datetime.now().replace(microsecond=0)
    assert main(["predict", str(run), "camera:48", "--every", "frame", "--output", "all.csv"]) == 0
    rows = read(tmp_path / "all.csv")
    assert [(row["path"], int(row["frame"])) for row in rows] == [("camera:48", number) for number in range(10)]
    times = [datetime.fromisoformat(row["time"]) for row in rows]
    assert before <= times[0]
    assert times == sorted(times)
    assert "predicted 10 images in" in capsys.readouterr().err
    assert main(["predict", str(run), "camera:48", "--every", "1h", "--output", "one.csv"]) == 0
    assert [row["frame"] for row in read(tmp_path / "one.csv")] == ["0"]


def test_camera__that_is_missing_is_one_sentence(run, monkeypatch, capsys):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert main(["predict", str(run), "camera:97"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: 'camera:97' cannot be opened (/dev/video97: ")
    assert said.endswith("connect the camera, or give another camera.")


def test_annotated_copy__has_every_frame(minute, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = write_video(tmp_path / "short.mp4", 45)
    assert main(["predict", str(run), short.name, "--output", "a.csv", "--annotated", "copy.mp4"]) == 0
    ledger = VideoLedger()
    pictures = [np.asarray(frame.image) for frame in read_frames("copy.mp4", 0, ledger)]
    assert (ledger.frames, ledger.problem) == (45, "")
    assert round(ledger.seconds, 2) == round(44 / RATE, 2)
    assert pictures[0][16:].mean() > 100  # below the line of text the frame is as it was
    assert pictures[0][2:14].mean() < 100  # the line of text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"predicted": "cat", "confidence": "0.9"}, "cat 90%"),
        ({"labels": "cat;dog"}, "cat;dog"),
        ({"labels": ""}, "none of the classes"),
        ({"predicted": "12.3456789", "low": "10", "high": "15.5"}, "12.35 (10 to 15.5)"),
        ({"predicted": "12.3", "low": "-inf", "high": "inf"}, "12.3"),
    ],
)
def test_annotated_copy__shows_what_the_model_answers(row, text):
    assert moving._describe_prediction(row) == text


def test_annotated_copy__without_a_folder_is_refused_before_the_video_is_read(minute, run, tmp_path, capsys):
    words = ["predict", str(run), str(minute), "--output", str(tmp_path / "a.csv")]
    assert main([*words, "--annotated", str(tmp_path / "missing" / "copy.mp4")]) == 2
    assert "--annotated" in capsys.readouterr().err
    assert not (tmp_path / "a.csv").exists()


def test_annotated_copy__may_lie_in_the_home_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    video = write_video(tmp_path / "short.mp4", 5)
    assert main(["predict", str(run), str(video), "--output", "~/a.csv", "--annotated", "~/copy.mp4"]) == 0
    assert (tmp_path / "copy.mp4").exists()


def test_detector__gives_boxes_of_watched_pictures_in_their_own_pixels(tmp_path, monkeypatch):
    preprocessing = SimpleNamespace(decode_options=DecodeOptions(side=32))
    card = SimpleNamespace(preprocessing=preprocessing)
    monkeypatch.setattr(moving, "task_of", lambda _: DETECTION)
    monkeypatch.setattr(moving, "load_detector", lambda *_: (None, card, "cpu"))
    numbered(0).resize((960, 480)).save(tmp_path / "large.png")
    monkeypatch.setattr(video, "POLL_SECONDS", 0.05)
    answerer = moving.FramePredictor("run", PredictSettings(), OutputSettings(), SilentConsole())
    frames = video.watch_images(tmp_path, set(), None, answerer.decode_options, SilentConsole())
    assert next(frame for frame in frames if frame is not None).image.size == (960, 480)


def test_watch__answers_each_picture_once_when_it_is_whole(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(video, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(video, "MAX_UNREADABLE_SECONDS", 0.3)
    folder = tmp_path / "new"
    folder.mkdir()
    for number in range(3):
        numbered(number).save(folder / f"{number}.png")
    (folder / "half.png").write_bytes((folder / "0.png").read_bytes()[:60])
    (folder / ".hidden.png").write_bytes(b"")
    (folder / "notes.txt").write_text("not a picture")
    words = ["predict", str(run), "--watch", "new", "--idle", "1s", "--output", "answers.csv"]
    assert main(words) == 0
    first = read(tmp_path / "answers.csv")
    assert sorted(row["path"] for row in first) == ["new/0.png", "new/1.png", "new/2.png", "new/half.png"]
    assert [row["path"] for row in first if not row["predicted"]] == ["new/half.png"]
    numbered(3).save(folder / "3.png")
    assert main(words) == 0
    names = [row["path"] for row in read(tmp_path / "answers.csv")]
    assert sorted(names) == ["new/0.png", "new/1.png", "new/2.png", "new/3.png", "new/half.png"]


def test_watch__waits_for_a_picture_that_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "POLL_SECONDS", 0.05)
    numbered(5).save(tmp_path / "whole.png")
    content, growing = (tmp_path / "whole.png").read_bytes(), tmp_path / "growing.png"
    growing.write_bytes(content[:50])
    source = video.watch_images(tmp_path, {str(tmp_path / "whole.png")}, None, DecodeOptions(None), SilentConsole())
    assert [next(source) for _ in range(4)] == [None] * 4  # unchanged for a while, but not yet a picture
    growing.write_bytes(content)
    os.utime(growing, (time.time(), time.time()))
    frame = next(frame for frame in source if frame is not None)
    assert number_in(frame.image) == 5


def test_table__of_other_settings_is_refused(tmp_path):
    with PredictionTable(str(tmp_path / "a.csv"), ["path", "frame", "x"], {"--every": "1s"}) as table:
        table.add([["v", 0, 1], ["v", 5, 2]])
    with (
        pytest.raises(paucal.UserError, match="another --every"),
        PredictionTable(str(tmp_path / "a.csv"), ["path"], {"--every": "2s"}),
    ):
        pass
    table = PredictionTable(
        str(tmp_path / "b.csv"), ["path", "frame", "x"], {"--every": "1s", "--precision": "bf16-mixed"}
    )
    with table:
        table.add([["v", 0, 1]])
    with (
        pytest.raises(paucal.UserError, match="another --precision"),
        PredictionTable(str(tmp_path / "b.csv"), ["path", "frame", "x"], {"--every": "1s"}),
    ):
        pass
    with PredictionTable(str(tmp_path / "a.csv"), ["path", "frame", "x"], {"--every": "1s"}) as table:
        assert table.done == {"v": 0}  # the last frame may be incomplete
        table.finish()
    assert not (tmp_path / "a.csv.part").exists()


def test_sources__that_do_not_go_together_are_refused(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["a.mp4", "b.png"], "videos and images"),
        (["a.mp4", "--watch", "x"], "cannot be combined with PATHS"),
        (["a.mp4", "--idle", "1s"], "--idle is only for --watch"),
        (["a.mp4", "--format", "json"], "CSV table"),
        (["a.mp4", "--annotated", "b.mp4"], "--annotated needs exactly one video file"),
        ([], "required: PATHS"),
        (["a.png", "--every", "2s"], "--every"),
    ):
        assert main(["predict", str(run), *words]) == 2
        assert said in capsys.readouterr().err, words


@pytest.mark.parametrize("flag", [["--precision", "bf16-mixed"], ["--mirror"]])
def test_detector__refuses_settings_of_classifiers_on_videos_as_on_images(run, monkeypatch, capsys, flag):
    monkeypatch.setattr(moving, "task_of", lambda _: DETECTION)
    assert main(["predict", str(run), "a.mp4", *flag]) == 2
    said = capsys.readouterr().err
    assert flag[0] in said
    assert "is not supported for detectors: remove --" in " ".join(said.split())
