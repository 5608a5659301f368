"""The run folder: everything needed to trust a run, to repeat it and to go on with it."""

import csv
import io
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paucal.runs.atomic import write_text
from paucal.types import UserError

MAX_TEXT_BYTES = 64 * 2**20
MARKER = "config.yaml"


@dataclass(frozen=True)
class RunFolder:
    """Names and files of one run; holds no state but its path."""

    path: Path

    @property
    def config(self) -> Path:
        """Resolved settings with the origin of every value."""
        return self.path / MARKER

    @property
    def split(self) -> Path:
        """Which image was used for what."""
        return self.path / "split.csv"

    @property
    def metrics(self) -> Path:
        """One row per epoch."""
        return self.path / "metrics.csv"

    @property
    def last(self) -> Path:
        """The newest complete state, from which a run goes on."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        """The state of the best validation score."""
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def weights(self) -> Path:
        """The deployable weights."""
        return self.path / "model.safetensors"

    @property
    def card(self) -> Path:
        """What is needed to rebuild the deployable model around its weights."""
        return self.path / "model.json"

    @property
    def plots(self) -> Path:
        """Pictures."""
        return self.path / "plots"

    @property
    def log(self) -> Path:
        """What was printed, with times."""
        return self.path / "train.log"

    def evaluation(self, name: str) -> Path:
        """The folder of one evaluation's results."""
        return self.path / "evaluation" / name

    def write_yaml(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a mapping as YAML, in the order given."""
        write_text(self.path / name, yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a mapping as JSON."""
        write_text(self.path / name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def read_yaml(self, name: str) -> dict[str, Any]:
        """Read a mapping written by `write_yaml`.

        Raises:
            UserError: the file is missing, too large or not a YAML mapping.
        """
        return _mapping(self.path / name, yaml.safe_load, yaml.YAMLError)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a mapping written by `write_json`.

        Raises:
            UserError: the file is missing, too large or not a JSON mapping.
        """
        return _mapping(self.path / name, json.loads, json.JSONDecodeError)

    def write_rows(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Write `metrics.csv`; columns appear in the order in which the rows first name them."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.metrics, text.getvalue())

    def read_rows(self) -> list[dict[str, float]]:
        """Read `metrics.csv`; an empty list where there is none yet.

        Raises:
            UserError: the file is too large or holds something other than numbers.
        """
        if not self.metrics.exists():
            return []
        try:
            if self.metrics.stat().st_size > MAX_TEXT_BYTES:
                raise ValueError("too large")
            with self.metrics.open(newline="") as file:
                return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
        except (ValueError, TypeError, csv.Error) as problem:
            raise UserError(f"{str(self.metrics)!r} is no table of numbers ({problem}): restore it.") from problem


def create_run(output: Path | None, root: Path = Path("runs"), overwrite: bool = False) -> RunFolder:
    """Make a new, empty run folder: `output`, or the next free number below `root`.

    Raises:
        UserError: `output` exists and `overwrite` is off, or it is something other than a run folder.
    """
    if output is None:
        path = _next_numbered(root)
    else:
        path = output
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            _clear(path, overwrite)
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    (path / "plots").mkdir(exist_ok=True)
    return RunFolder(path)


def open_run(path: str | Path) -> RunFolder:
    """Open an existing run folder, or the newest one below a folder that holds several.

    Raises:
        UserError: there is no run at that place.
    """
    path = Path(path)
    if (path / MARKER).is_file():
        return RunFolder(path)
    runs = sorted(_runs_below(path), key=lambda run: (run / MARKER).stat().st_mtime)
    if not runs:
        what = "holds no run" if path.exists() else "does not exist"
        raise UserError(f"{str(path)!r} {what}: expected a run folder (with a {MARKER}), such as runs/1.")
    return RunFolder(runs[-1])


def _runs_below(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return [child for child in path.iterdir() if (child / MARKER).is_file()]


def _next_numbered(root: Path) -> Path:
    """Claim the folder after the highest number in use; another process may be claiming one too."""
    root.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(p.name) for p in root.iterdir() if re.fullmatch(r"\d{1,9}", p.name)), default=0)
    while True:
        try:
            (root / str(number)).mkdir()
            return root / str(number)
        except FileExistsError:
            number += 1


def _clear(path: Path, overwrite: bool) -> None:
    if not overwrite:
        raise UserError(
            f"the output folder {str(path)!r} exists already: choose another with --output, "
            f"go on with it by --resume {path}, or replace it with --overwrite."
        )
    if not _is_run(path):
        raise UserError(
            f"--overwrite replaces run folders only, and {str(path)!r} has no {MARKER} of a run: "
            "choose another --output, or remove it yourself."
        )
    shutil.rmtree(path)


def _is_run(path: Path) -> bool:
    """Tell a run folder from any project that happens to hold a file of the same common name."""
    if not (path / "checkpoints").is_dir():
        return False
    try:
        return isinstance(RunFolder(path).read_yaml(MARKER).get("settings"), dict)
    except (UserError, OSError):
        return False


def _mapping(path: Path, parse, error: type[Exception]) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise UserError(f"{str(path)!r} is larger than {MAX_TEXT_BYTES} bytes: it is not a file of a run.")
        # File names may be any bytes, see `write_text`.
        value = parse(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} is missing: the run folder is incomplete; train again.") from None
    except (error, UnicodeDecodeError, RecursionError) as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): restore it or train again.") from problem
    if not isinstance(value, dict):
        raise UserError(f"{str(path)!r} holds no mapping of names to values: restore it or train again.")
    return value
