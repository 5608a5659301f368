"""The run folder: everything needed to check, repeat and resume a run."""

import csv
import io
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from paucal.cores import usable_cores
from paucal.reading import MAX_CONFIG_BYTES, parse_json, parse_yaml, read_text
from paucal.runs.files import write_text
from paucal.types import UserError

MAX_TEXT_BYTES = 64 * 2**20
RUNS = Path("runs")  # default folder of runs
MARKER = "config.yaml"
SUMMARY = "summary.json"  # written at the end, so only finished runs have one
PLACE = "place.json"  # file in the local copy of a run on object storage, with the URL of the run
FRAME = re.compile(r"frame-[0-9a-f]{16}\.(csv|parquet)")  # a DataFrame that was given as DATA, kept in the run
ASIDE = ".replaced"  # suffix of the folder of a run that is being replaced
PACKAGES = ("paucal", "torch", "torchvision", "timm", "lightning", "torchmetrics", "scikit-learn", "numpy", "pillow")
TIMM = "timm"  # start from the weights that timm publishes
AUTO = "auto"  # the same, if the run chose them itself and auto-tunes from them
COCO = "coco"  # start from a detector that torchvision publishes
PUBLISHED = (TIMM, AUTO, COCO)
MAX_ANCESTORS = 32  # runs in a chain


class _PlainDumper(yaml.SafeDumper):
    """Writes repeated values in full, since aliases are not read."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True for every value."""
        return True


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, determined by its path."""

    path: Path

    @property
    def finished(self) -> bool:
        """Whether the run is finished and therefore cannot be resumed."""
        return (self.path / SUMMARY).exists()

    @property
    def place(self) -> str:
        """The URL if this folder is a copy of a run on object storage; otherwise the path."""
        try:
            return str(parse_json(read_text(self.path.parent / PLACE, MAX_CONFIG_BYTES))["url"])
        except (OSError, UserError, ValueError, KeyError, TypeError):
            return str(self.path)

    @property
    def config(self) -> Path:
        """Resolved settings with the origin of every value."""
        return self.path / MARKER

    @property
    def split(self) -> Path:
        """The split of the images."""
        return self.path / "split.csv"

    @property
    def metrics(self) -> Path:
        """The metrics, one row per epoch."""
        return self.path / "metrics.csv"

    @property
    def last(self) -> Path:
        """The newest checkpoint, from which a run is resumed."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        """The checkpoint with the best validation score."""
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def weights(self) -> Path:
        """The deployable weights."""
        return self.path / "model.safetensors"

    @property
    def card(self) -> Path:
        """The model card, from which the deployable model is built."""
        return self.path / "model.json"

    @property
    def plots(self) -> Path:
        """The folder of figures."""
        return self.path / "plots"

    @property
    def log(self) -> Path:
        """The log of printed lines with times."""
        return self.path / "train.log"

    def write_config(self, settings: Mapping[str, Any], origin: Mapping[str, str], verb: str, **more: Any) -> None:
        """Write the configuration of the run: all settings, their origins, and the verb."""
        self.write_yaml(MARKER, {"settings": dict(settings), "origin": dict(origin), "verb": verb, **more})

    @property
    def verb(self) -> str:
        """The verb of the run, such as "train" or "pretrain"."""
        return str(self.read_yaml(MARKER).get("verb", "train"))

    @property
    def settings(self) -> dict[str, Any]:
        """The stored settings, unchecked; empty if the folder has only a model."""
        values = self.read_yaml(MARKER).get("settings") if self.config.exists() else None
        return self.with_kept_frame(values) if isinstance(values, dict) else {}

    def with_kept_frame(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return stored settings whose DATA is the DataFrame in this folder, also after the folder was moved."""
        data = settings.get("data")
        name = Path(data).name if isinstance(data, str) else ""
        is_kept = FRAME.fullmatch(name) is not None and (self.path / name).is_file()
        return {**settings, "data": str(self.path / name)} if is_kept else settings

    def evaluation(self, name: str) -> Path:
        """Return the folder of an evaluation's results."""
        return self.path / "evaluation" / name

    def write_yaml(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a mapping as YAML, in the order given."""
        write_text(self.path / name, yaml.dump(dict(value), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a mapping as JSON."""
        write_text(self.path / name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def read_yaml(self, name: str) -> dict[str, Any]:
        """Read a mapping written by `write_yaml`."""
        return _read_mapping(self.path / name, parse_yaml, MAX_CONFIG_BYTES)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a mapping written by `write_json`."""
        return _read_mapping(self.path / name, parse_json, MAX_TEXT_BYTES)

    def write_rows(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Write `metrics.csv`; columns appear in the order in which the rows first name them."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.metrics, text.getvalue())

    def read_rows(self) -> list[dict[str, float]]:
        """Read `metrics.csv`; an empty list if it does not exist yet."""
        if not self.metrics.exists():
            return []
        try:
            text = io.StringIO(read_text(self.metrics, MAX_TEXT_BYTES), newline="")
            return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(text)]
        except (ValueError, TypeError, csv.Error) as problem:
            raise UserError(f"{str(self.metrics)!r} is not a table of numbers ({problem}): restore it.") from problem


def create_run(output: Path | None, root: Path = Path("runs")) -> RunFolder:
    """Create a new, empty run folder: `output`, or the next free number below `root`."""
    if output is not None and is_taken(output):
        raise UserError(f"--output: {str(output)!r} exists already{_advice_on_run(output)}.")
    path = next_numbered(root) if output is None else output
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    (path / "plots").mkdir(exist_ok=True)
    return RunFolder(path)


def _advice_on_run(output: Path) -> str:
    if not (output / MARKER).is_file():
        return " and is not empty: choose another folder" if output.is_dir() else " and is not a folder: choose another"
    if RunFolder(output).finished:
        return ", a finished run: choose another folder, or replace it with --overwrite"
    return (
        f": resume it with --resume {shlex.quote(str(output))}, choose another folder, or replace it with --overwrite"
    )


def is_taken(path: Path) -> bool:
    """Return whether a path for a run already exists and is not empty."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def open_run(path: str | Path) -> RunFolder:
    """Open an existing run folder, or the newest one below a folder that holds several."""
    path = Path(path)
    if (path / MARKER).is_file():
        return RunFolder(path)
    runs = sorted(_runs_below(path), key=lambda run: (run / MARKER).stat().st_mtime)
    if not runs:
        problem = "holds no run" if path.exists() else "does not exist"
        raise UserError(f"{str(path)!r} {problem}: expected a run folder (with a {MARKER}), such as runs/1.")
    return RunFolder(runs[-1])


def open_model_folder(path: str | Path) -> RunFolder:
    """Open the folder of a model: a run, see `open_run`, or `model.json` and `model.safetensors` alone."""
    folder = RunFolder(Path(path))
    is_alone = folder.card.is_file() and folder.weights.is_file() and not folder.config.exists()
    return folder if is_alone else open_run(path)


def _runs_below(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return [child for child in path.iterdir() if (child / MARKER).is_file() and child.suffix != ASIDE]


def next_numbered(root: Path) -> Path:
    """Create the folder after the highest number in use; another process may do so at the same time."""
    root.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(p.name) for p in root.iterdir() if re.fullmatch(r"\d{1,9}", p.name)), default=0)
    while True:
        try:
            (root / str(number)).mkdir()
            return root / str(number)
        except FileExistsError:
            number += 1


def _read_mapping(path: Path, parse: Callable[[str], Any], max_bytes: int) -> dict[str, Any]:
    try:
        # File names may be any bytes, see `write_text`.
        value = parse(read_text(path, max_bytes, errors="surrogateescape"))
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} is missing: the run folder is incomplete; train again.") from None
    except ValueError as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): restore it or train again.") from problem
    if not isinstance(value, dict):
        raise UserError(f"{str(path)!r} is not a mapping of names to values: restore it or train again.")
    return value


def describe_environment(device: str) -> dict[str, Any]:
    """Return versions, hardware and the command line as plain values for `env.json`."""
    import torch  # slow to import, and not needed for listing runs

    return {
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed_version(name) for name in PACKAGES},
        "device": device,
        "accelerator": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "cpu_cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
    }


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run_around(file: Path) -> RunFolder | None:
    """Return the run that a model or checkpoint file belongs to; None for other files."""
    for folder in (file.parent, file.parent.parent):
        run = RunFolder(folder)
        if (folder / MARKER).is_file() and file in (run.weights, run.best, run.last):
            return run
    return None


def run_behind(init: str | None) -> RunFolder | None:
    """Return the run whose model or checkpoint is named by `init`; None for other values and missing files."""
    if init is None or init in PUBLISHED:
        return None
    path = Path(init).expanduser()
    return RunFolder(path) if path.is_dir() else run_around(path)


def with_ancestors(run: RunFolder | None) -> Iterator[RunFolder]:
    """Yield a run, the run it started from, and so on.

    The chain ends at a missing or unreadable run, whose start is unknown.

    Raises:
        UserError: The config of an existing run cannot be read; the runs that descend from it were yielded before.
    """
    for _ in range(MAX_ANCESTORS):
        if run is None:
            return
        yield run
        if not run.config.is_file():
            return
        init = run.settings.get("init")
        if not isinstance(init, str):
            return
        is_gone = init not in PUBLISHED and not Path(init).exists()
        run = RunFolder(Path(init)) if is_gone else run_behind(init)
