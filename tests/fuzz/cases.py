"""Calls that are made: one strange flag or two, damaged files, odd data, odd words."""

import json
import os

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from cli.calls import SMALL, TINY
from fuzz.calls import Case, Step
from fuzz.damage import HOWS, INNER
from fuzz.fitting import fitting_words_of
from fuzz.flags import flag_names, flags_of, named_flags
from fuzz.layouts import LAYOUTS
from fuzz.material import MAPS
from fuzz.values import ODD, PATHS, TEXT, WORDS, words_of
from paucal.cli.main import COMMAND_SUMMARIES

M = "../material"
RUN_FILES = ("config.yaml", "model.json", "model.safetensors", "split.csv", "metrics.csv", "checkpoints/last.ckpt")
OTHER_FILES = ("summary.json", "env.json", "train.log", "checkpoints/best.ckpt", "evaluation/test/metrics.json")
MAP_FILES = ("index.json", "values.npy", "indices.npy", "done.npy")
WEIGHTS = ("plain.safetensors", "plain.pth", "old.pth", "several.pth")
SHORT = [*TINY, "--epochs", "1"]
GRID = [
    "--img-size",
    "16",
    "-j",
    "0",
    "--models",
    "vit_mini",
    "--model-args",
    "depth=1",
    "--epochs",
    "1",
    "--seeds",
    "0",
]
BOXES = ["--model", "test_resnet", "--init", "none", "--img-size", "64", "--steps", "1", "-b", "2", "-j", "0"]
ONLY_LOOK = "--print-config"
PORT = str(20_000 + os.getpid() % 20_000)  # several processes test at once
# Sound calls of each verb, to which something strange is added; a verb that is not here is called bare.
FILES = ["--output", "a.csv", "--features", "a.parquet", "--sheet", "a.png", "-b", "5"]
SOUND: dict[str, list[list[str]]] = {
    "train": [[f"{M}/photos", *SHORT, ONLY_LOOK]] * 4 + [[f"{M}/photos", *SHORT, "--output", "out"]],
    "pretrain": [[f"{M}/photos", *SHORT, ONLY_LOOK]] * 4 + [[f"{M}/photos", *SHORT, "--output", "out"]],
    "segment": [
        [f"{M}/scenes", *SMALL, "--epochs", "1", "--crops", "1", *more] for more in ([ONLY_LOOK], ["--output", "out"])
    ],
    "compare": [[f"{M}/photos", *GRID, "--jobs", "0", "--output", "out"]],
    "study": [
        ["list"],
        ["show", "drloc-table-4"],
        ["drloc-table-9", "--rows", "ViT-B/16", "--data", f"{M}/photos", "--jobs", "0", "--output", "out"],
    ],
    "runs": [[M], [f"{M}/run", "--sort", "test"]],
    "eval": [
        *[[f"{M}/run", *data, "--output", "out"] for data in ([], [f"{M}/nested"])],
        [f"{M}/pre", f"{M}/nested", "--protocol", "knn", "--no-floor", "--output", "out"],
        [f"{M}/run", "--protocol", "linear", "logistic", "--probe-epochs", "1", "--output", "out"],
    ],
    "predict": [
        [f"{M}/run", f"{M}/photos/class0"],
        [f"{M}/areas", f"{M}/photos/class0", "--output", "out"],
        [f"{M}/exported/model.onnx", f"{M}/photos/class0", "--top-k", "2"],
        [f"{M}/run", f"{M}/photos", *FILES],
    ],
    "explain": [[f"{M}/run", f"{M}/photos/class0", "--method", "libra", "--output", "out"]],
    "next": [
        [f"{M}/run", f"{M}/more", "--count", "3", "--output", "a.csv"],
        [f"{M}/run", f"{M}/more", "--count", "3", "--to", "csv", "--folder", "out"],
        [f"{M}/areas", f"{M}/nested", "--count", "2", "--sheet", "a.png"],
    ],
    "label": [
        [f"{M}/photos", "--teacher", f"{M}/run", "--min-accuracy", "0", "--img-size", "32", "--output", "out"],
        [f"{M}/photos", "--from-published", f"{M}/photos", "--output", "out"],
    ],
    "export": [
        [f"{M}/run", "--format", "safetensors", "--output", "out"],
        [f"{M}/run", "--format", "pt2", "--images", "4", "--output", "out"],
        [f"{M}/run", "--format", "onnx", "--with-preprocessing", "--images", "4", "--output", "out"],
    ],
    "check": [[f"{M}/photos"], [f"{M}/scenes"], [f"{M}/boxes", "--output", "out"]],
    "detect": [[f"{M}/boxes", *BOXES, *more] for more in ([ONLY_LOOK], ["--output", "out"])],
    "shard": [[f"{M}/photos", "out"], [f"{M}/photos", "out", "--format", "parquet"]],
    "convert": [
        [f"{M}/photos", "out", "--to", "csv"],
        [f"{M}/scenes", "out", "--to", "masks"],
        [f"{M}/boxes", "out", "--to", "voc"],
    ],
    "cache": [[]],
    "serve": [
        [f"{M}/run", "--port", PORT],
        [f"{M}/exported", "--port", PORT],
        ["--label", f"{M}/photos", "--save", "a.csv", "--classes", "a", "b", "--port", PORT],
    ],
    "completion": [["bash"]],
    "models": [["lvvit*"], ["--ours"]],
    "recipes": [[]],
    "weights": [["list"]],
}
KINDS: dict[str, SearchStrategy[Case]] = {}


def _kind(name: str):
    def register(make):
        KINDS[name] = make()
        return make

    return register


@st.composite
def _flags(draw: DrawFn, kind: str, count: int) -> Case:
    verb, first = draw(st.sampled_from(named_flags()))
    flags = [first, *(draw(st.sampled_from([f for f in flags_of(verb) if f.name])) for _ in range(count - 1))]
    more = [word for flag in flags for word in draw(words_of(flag))]
    return Case(kind, (verb, *draw(st.sampled_from(SOUND.get(verb, [[]]))), *more))


@_kind("fitting")
@st.composite
def _fitting(draw: DrawFn) -> Case:
    """Several flags with values that may well be right together."""
    verb = draw(st.sampled_from([verb for verb in COMMAND_SUMMARIES for _ in range(len(flags_of(verb)))]))
    named = [
        flag for flag in flags_of(verb) if flag.name not in ("", "--config", "--resume", "--download", "--compile")
    ]
    flags = draw(st.lists(st.sampled_from(named), min_size=1, max_size=6, unique=True)) if named else []
    more = [word for flag in flags for word in draw(fitting_words_of(flag))]
    return Case("fitting", (verb, *draw(st.sampled_from(SOUND.get(verb, [[]])[-3:])), *more))


_kind("flag")(lambda: _flags("flag", 1))
_kind("flags")(lambda: st.integers(2, 4).flatmap(lambda count: _flags("flags", count)))


@_kind("overwrite")
@st.composite
def _overwrite(draw: DrawFn) -> Case:
    """Replace a run by one with a strange flag: where that fails, the old run must be as it was."""
    verb = draw(st.sampled_from(["train", "pretrain"]))
    flag = draw(
        st.sampled_from([flag for flag in flags_of(verb) if flag.name not in ("", "--print-config", "--resume")])
    )
    argv = (verb, f"{M}/photos", *SHORT, "--output", "old", *draw(words_of(flag)), "--overwrite")
    return Case("overwrite", argv, (Step("copy", "old", "run"),), ("old",))


@_kind("words")
@st.composite
def _words(draw: DrawFn) -> Case:
    verb = draw(st.sampled_from(list(COMMAND_SUMMARIES)) | ODD)
    names = flag_names(verb) if verb in COMMAND_SUMMARIES else ["--output"]
    word = st.sampled_from(PATHS) | st.sampled_from(WORDS) | st.sampled_from(names or ["--x"]) | ODD
    look = [ONLY_LOOK] if ONLY_LOOK in names else []
    return Case("words", (verb, *draw(st.lists(word, max_size=4)), *look))


def _hows(*, inner: bool = False) -> SearchStrategy[str]:
    names = [*HOWS, *["flip", "cut", "insert"] * 2, *["inner"] * (12 if inner else 0)]
    return st.builds(lambda how, number: f"{how}-{number}", st.sampled_from(names), st.integers(0, 999))


def _readers(run: str) -> list[tuple[str, list[str]]]:
    """Return calls that read a run."""
    return [
        ("eval", [run, "--output", "out"]),
        ("eval", [run, f"{M}/nested", "--output", "out"]),
        ("eval", [run, f"{M}/nested", "--protocol", "knn", "--output", "out"]),
        ("eval", [f"{M}/run", f"{M}/nested", "--protocol", "knn", "--no-floor", "--compare", run, "--output", "out"]),
        ("predict", [run, f"{M}/photos/class0"]),
        ("export", [run, "--format", "safetensors", "pt2", "--images", "4", "--output", "out"]),
        ("serve", [run, "--port", PORT]),
        ("train", [f"{M}/nested", *SHORT, "--init", run, ONLY_LOOK]),
        ("train", [f"{M}/nested", *SHORT, "--add", "locality", "--guide", run, ONLY_LOOK]),
        ("train", [f"{M}/nested", *SHORT, "--add", "distillation", "--teacher", run, ONLY_LOOK]),
        ("train", [f"{M}/nested", "--config", f"{run}/config.yaml", ONLY_LOOK]),
        ("label", [f"{M}/photos", "--teacher", run, "--min-accuracy", "0", "--img-size", "32", "--output", "out"]),
    ]


@_kind("run")
@st.composite
def _run(draw: DrawFn) -> Case:
    source = draw(st.sampled_from(["run", "run", "pre", "stopped", "prestopped"]))
    if source in ("stopped", "prestopped"):
        verb = "train" if source == "stopped" else "pretrain"
        call: tuple[str, list[str]] = (verb, ["--resume", "old", "--time-limit", "1s"])
    else:
        call = draw(st.sampled_from(_readers("old")))
    file = draw(st.sampled_from(RUN_FILES) | st.sampled_from(OTHER_FILES if source == "run" else RUN_FILES))
    how = draw(_hows(inner=file.endswith((".json", ".yaml"))))
    steps = (Step("copy", "old", source), Step("damage", f"old/{file}", how))
    return Case("run", (call[0], *call[1]), steps, ("old",))


@_kind("exported")
@st.composite
def _exported(draw: DrawFn) -> Case:
    """Damage what `paucal export` has written, and give it to what reads it."""
    file = draw(st.sampled_from(["model.onnx", "model.onnx", "model.json", "model.safetensors", "config.json"]))
    source = "old/model.onnx" if file == "model.onnx" else "old"
    call = draw(
        st.sampled_from(
            [
                ["predict", source, f"{M}/photos/class0"],
                ["predict", source, f"{M}/photos/class0", "--features", "a.parquet"],
                ["serve", source, "--port", PORT],
                ["export", source, "--format", "safetensors", "--output", "out"],
            ]
        )
    )
    damage = Step("damage", f"old/{file}", draw(_hows(inner=file.endswith(".json"))))
    return Case("exported", tuple(call), (Step("copy", "old", "exported"), damage), ("old",))


@_kind("unfinished")
@st.composite
def _unfinished(draw: DrawFn) -> Case:
    """Damage the answers of a call that was stopped, and go on with it."""
    damage = Step("damage", "a.csv.part/0000.arrow", draw(_hows()))
    words = draw(st.sampled_from([FILES, [*FILES, "--top-k", "1"]]))
    steps = (Step("copy", "a.csv.part", "answers"), damage)
    return Case("unfinished", ("predict", f"{M}/run", f"{M}/photos", *words), steps, ("a.csv.part",))


@_kind("config")
@st.composite
def _config(draw: DrawFn) -> Case:
    verb = draw(st.sampled_from(["train", "pretrain"]))
    call = (verb, f"{M}/photos", *SHORT, "--config", "settings.yaml", ONLY_LOOK)
    if draw(st.booleans()):
        steps = (Step("copy", "settings.yaml", "settings.yaml"), Step("damage", "settings.yaml", draw(_hows())))
        return Case("config", call, steps)
    names = st.sampled_from([name.lstrip("-").replace("-", "_") for name in flag_names(verb)]) | TEXT
    values = st.sampled_from(INNER) | ODD | st.sampled_from(WORDS) | st.integers() | st.floats()
    content = draw(st.dictionaries(names, values | st.lists(values, max_size=3), min_size=1, max_size=3))
    return Case("config", call, (Step("write", "settings.yaml", json.dumps(content)),))


@_kind("data")
@st.composite
def _data(draw: DrawFn) -> Case:
    name = draw(st.sampled_from(list(LAYOUTS)))
    layout = f"{name}-{draw(st.integers(0, 999))}"
    target = "data/list.txt" if name == "list" and draw(st.booleans()) else "data"
    skip = draw(st.sampled_from([[], ["--on-bad-image", "skip"]]))
    calls = [
        ("train", [target, *SHORT, ONLY_LOOK]),
        ("train", [target, *SHORT, ONLY_LOOK]),
        ("train", [target, *SHORT, "--output", "out"]),
        ("pretrain", [target, *SHORT, ONLY_LOOK]),
        ("predict", [f"{M}/run", target]),
        ("predict", [f"{M}/run", f"{target}/**"]),
        ("eval", [f"{M}/run", target, "--output", "out"]),
        ("eval", [f"{M}/pre", target, "--protocol", "knn", "--no-floor", "--output", "out"]),
        ("label", [target, "--teacher", f"{M}/run", "--min-accuracy", "0", "--img-size", "32", "--output", "out"]),
    ]
    verb, words = draw(st.sampled_from(calls))
    return Case("data", (verb, *words, *skip), (Step("layout", "data", layout),))


@_kind("lists")
@st.composite
def _lists(draw: DrawFn) -> Case:
    """Damage a file that names images, classes or answers, or a Parquet file."""
    source, call = draw(
        st.sampled_from(
            [
                ("list.txt", ["train", "file", "--data-root", M, *SHORT, ONLY_LOOK]),
                ("names.txt", ["train", f"{M}/photos", "--classes", "file", *SHORT, ONLY_LOOK]),
                ("real.json", ["eval", f"{M}/run", "--real-labels", "file", "--output", "out"]),
                ("parquet", ["train", "data", *SHORT, ONLY_LOOK]),
                ("parquet", ["predict", f"{M}/run", "data"]),
            ]
        )
    )
    suffix = source.rpartition(".")[2]
    target, file = ("data", "data/train-00000-of-00001.parquet") if source == "parquet" else (f"file.{suffix}",) * 2
    words = tuple(target if word in ("file", "data") else word for word in call)
    how = draw(_hows(inner=suffix == "json"))
    return Case("lists", words, (Step("copy", target, source), Step("damage", file, how)))


@_kind("weights")
@st.composite
def _weights(draw: DrawFn) -> Case:
    name = draw(st.sampled_from(WEIGHTS))
    calls = [
        ["train", f"{M}/photos", *SHORT, "--init", name, ONLY_LOOK],
        ["pretrain", f"{M}/photos", *SHORT, "--init", name, ONLY_LOOK],
        *[
            ["eval", name, f"{M}/nested", "--protocol", "knn", "--no-floor", "--model", m, "--output", "out"]
            for m in ("vit_mini",)
        ],
    ]
    steps = (Step("copy", name, f"weights/{name}"), Step("damage", name, draw(_hows())))
    return Case("weights", tuple(draw(st.sampled_from(calls))), steps)


@_kind("maps")
@st.composite
def _maps(draw: DrawFn) -> Case:
    source = draw(st.sampled_from(["maps", "maps", "unfinished"]))
    learn = (
        "train",
        f"{M}/photos",
        *MAPS,
        "--labels",
        "old",
        *draw(st.sampled_from([[ONLY_LOOK], ["--output", "out"]])),
    )
    go_on = (
        "label",
        f"{M}/photos",
        "--teacher",
        f"{M}/run",
        "--min-accuracy",
        "0",
        "--img-size",
        "32",
        "--output",
        "old",
    )
    file = draw(st.sampled_from(MAP_FILES))
    steps = (Step("copy", "old", source), Step("damage", f"old/{file}", draw(_hows(inner=file.endswith("json")))))
    return Case("maps", draw(st.sampled_from([learn, go_on])), steps, ("old",))
