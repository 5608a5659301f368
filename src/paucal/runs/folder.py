"""The run folder: paths of its files, and functions that create, open and read run folders."""

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

from paucal.cores import count_usable_cores
from paucal.reading import MAX_CONFIG_BYTES, parse_json, parse_yaml, read_text
from paucal.types import UserError
from paucal.writing import csv_text, write_text

MAX_TEXT_BYTES = 64 * 2**20  # size limit for each text file of a run
RUNS_FOLDER = Path("runs")  # parent folder of the numbered runs
CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"  # written at the end, so only finished runs have a summary
PLACE_FILE = "place.json"  # contains the URL of a run on object storage; stored beside the local copy of the run
FRAME_FILE = re.compile(r"frame-[0-9a-f]{16}\.(csv|parquet)")  # stored copies of DataFrames that were given as DATA
ASIDE_SUFFIX = ".replaced"  # suffix of the folder that holds the old run while a new run replaces it
REPORTED_PACKAGES = (
    *("paucal", "torch", "torchvision", "timm", "lightning", "torchmetrics", "scikit-learn", "numpy"),
    "pillow",
)
# Values of the setting `init` that are not paths.
TIMM = "timm"  # the weights that timm publishes for the model
CHOSEN_WEIGHTS = "auto"  # pretrained weights that were chosen automatically; such a run auto-tunes
COCO = "coco"  # the weights that torchvision publishes for a detector
PUBLISHED_WEIGHTS = (TIMM, CHOSEN_WEIGHTS, COCO)
MAX_ANCESTORS = 32  # largest length of a chain of runs in which each run started from the weights of the next run
GRID_FILE = "grid.json"  # stored in the folder of a comparison or study
SCORES_FILE = "judged.json"  # stored in the parent folder of a run; contains the run's scores by evaluation protocol


class _PlainDumper(yaml.SafeDumper):
    """YAML dumper that writes repeated values in full instead of as aliases, which `parse_yaml` refuses."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never write an alias."""
        return True


@dataclass(unsafe_hash=True)  # the hash is safe, since nothing changes `path`
class RunFolder:
    """The folder of a run: the paths of its files, and methods that read and write files."""

    path: Path

    def __post_init__(self) -> None:
        self.config = self.path / CONFIG_FILE  # resolved settings and the origin of each value
        self.split = self.path / "split.csv"  # table with the split of each image
        self.metrics = self.path / "metrics.csv"  # table with one row per epoch
        self.last = self.path / "checkpoints" / "last.ckpt"  # newest checkpoint, from which the run is resumed
        self.best = self.path / "checkpoints" / "best.ckpt"  # checkpoint with the best validation score
        self.weights = self.path / "model.safetensors"  # final weights, for inference
        self.card = self.path / "model.json"  # model card: architecture, classes and preprocessing of `weights`
        self.plots = self.path / "plots"  # folder with figures
        self.log = self.path / "train.log"  # each printed line with its time

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end, so that it cannot be resumed."""
        return (self.path / SUMMARY_FILE).exists()

    @property
    def place(self) -> str:
        """The URL of the run if this folder is the local copy of a run on object storage; otherwise the path."""
        try:
            return str(parse_json(read_text(self.path.parent / PLACE_FILE, MAX_CONFIG_BYTES))["url"])
        except (OSError, UserError, ValueError, KeyError, TypeError):
            return str(self.path)

    def write_config(
        self, settings: Mapping[str, Any], origins: Mapping[str, str], verb: str, **extra_entries: Any
    ) -> None:
        """Write `config.yaml` with the settings, the origin of each value, the command, and `extra_entries`."""
        self.write_yaml(
            CONFIG_FILE, {"settings": dict(settings), "origin": dict(origins), "verb": verb, **extra_entries}
        )

    @property
    def verb(self) -> str:
        """The name of the command that made the run, such as "train" or "pretrain"."""
        return str(self.read_yaml(CONFIG_FILE).get("verb", "train"))

    @property
    def settings(self) -> dict[str, Any]:
        """The stored settings, which are not validated; an empty dict if the folder contains only a model."""
        values = self.read_yaml(CONFIG_FILE).get("settings") if self.config.exists() else None
        return self.with_kept_frame(values) if isinstance(values, dict) else {}

    def with_kept_frame(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return settings with the path of a DataFrame that is stored in this folder, which may have been moved."""
        data = settings.get("data")
        name = Path(data).name if isinstance(data, str) else ""
        is_stored_here = FRAME_FILE.fullmatch(name) is not None and (self.path / name).is_file()
        return {**settings, "data": str(self.path / name)} if is_stored_here else settings

    def evaluation(self, name: str) -> Path:
        """Return the folder for the results of the evaluation `name`."""
        return self.path / "evaluation" / name

    def write_yaml(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a mapping as a YAML file in the run folder, keeping the order of the keys."""
        write_text(self.path / name, yaml.dump(dict(value), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a mapping as a JSON file in the run folder."""
        write_text(self.path / name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def read_yaml(self, name: str) -> dict[str, Any]:
        """Read a mapping written by `write_yaml`."""
        return _read_mapping(self.path / name, parse_yaml, MAX_CONFIG_BYTES)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a mapping written by `write_json`."""
        return _read_mapping(self.path / name, parse_json, MAX_TEXT_BYTES)

    def write_rows(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Write `metrics.csv`, with columns in the order in which they first appear in the rows."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        write_text(self.metrics, csv_text(columns, *([row.get(name) for name in columns] for row in rows)))

    def read_rows(self) -> list[dict[str, float]]:
        """Read the rows of `metrics.csv`; an empty list if the file does not exist yet."""
        if not self.metrics.exists():
            return []
        try:
            text = io.StringIO(read_text(self.metrics, MAX_TEXT_BYTES), newline="")
            return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(text)]
        except (ValueError, TypeError, csv.Error) as problem:
            raise UserError(
                f"{str(self.metrics)!r} is not a table of numbers ({problem}): restore the file."
            ) from problem


def create_run(output: Path | None, root: Path = Path("runs")) -> RunFolder:
    """Create a run folder: `output`, or the next free number in `root`."""
    if output is not None and is_nonempty(output):
        replacement = "choose another folder, or replace it with --overwrite"
        if not output.is_dir():
            advice = " and is not a folder: choose another"
        elif not (output / CONFIG_FILE).is_file():
            advice = " and is not empty: choose another folder"
        elif RunFolder(output).finished:
            advice = f", a finished run: {replacement}"
        else:
            advice = f": resume it with --resume {shlex.quote(str(output))}, {replacement}"
        raise UserError(f"--output: {str(output)!r} exists already{advice}.")
    path = create_next_numbered(root) if output is None else output
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    (path / "plots").mkdir(exist_ok=True)
    return RunFolder(path)


def is_nonempty(path: Path) -> bool:
    """Return whether a path for a run already exists and is not empty."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def open_run(path: str | Path) -> RunFolder:
    """Open an existing run folder; if `path` contains several runs, open the newest one."""
    path = Path(path)
    if (path / CONFIG_FILE).is_file():
        return RunFolder(path)
    children = path.iterdir() if path.is_dir() else ()
    runs = [child for child in children if (child / CONFIG_FILE).is_file() and child.suffix != ASIDE_SUFFIX]
    if not runs:
        problem = "contains no run" if path.exists() else "does not exist"
        raise UserError(f"{str(path)!r} {problem}: expected a run folder (with a {CONFIG_FILE}), such as runs/1.")
    return RunFolder(sorted(runs, key=lambda run: (run / CONFIG_FILE).stat().st_mtime)[-1])


def open_model_folder(path: str | Path) -> RunFolder:
    """Open a run (see `open_run`), or a folder that contains only `model.json` and `model.safetensors`."""
    folder = RunFolder(Path(path))
    has_only_model = folder.card.is_file() and folder.weights.is_file() and not folder.config.exists()
    return folder if has_only_model else open_run(path)


def create_next_numbered(root: Path) -> Path:
    """Create the folder with the next free number in `root`; several processes may do this at the same time."""
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
        # Stored file names may contain bytes that are not UTF-8.
        value = parse(read_text(path, max_bytes, errors="surrogateescape"))
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} is missing: the run folder is incomplete; train again.") from None
    except ValueError as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): restore the file, or train again.") from problem
    if not isinstance(value, dict):
        raise UserError(f"{str(path)!r} is not a mapping of names to values: restore the file, or train again.")
    return value


def describe_environment(device: str) -> dict[str, Any]:
    """Return the content of `env.json`: the command line, versions and hardware."""
    import torch  # slow to import, and only needed here

    return {
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: installed_version(name) for name in REPORTED_PACKAGES},
        "device": device,
        "accelerator": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "cpu_cores": count_usable_cores(),
        "torch_threads": torch.get_num_threads(),
    }


def installed_version(package: str) -> str | None:
    """Return the version of a package; None if the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def find_run_of_file(file: Path) -> RunFolder | None:
    """Return the run that a weights file or checkpoint belongs to; None for other files."""
    for folder in (file.parent, file.parent.parent):
        run = RunFolder(folder)
        if (folder / CONFIG_FILE).is_file() and file in (run.weights, run.best, run.last):
            return run
    return None


def find_run_of_init(init: str | None) -> RunFolder | None:
    """Return the run whose folder, weights file or checkpoint `init` is; None for other values."""
    if init is None or init in PUBLISHED_WEIGHTS:
        return None
    path = Path(init).expanduser()
    return RunFolder(path) if path.is_dir() else find_run_of_file(path)


def iterate_ancestry(run: RunFolder | None) -> Iterator[RunFolder]:
    """Yield a run, then the run that provided its initial weights, and so on.

    The last run did not start from the weights of another run, or its folder is missing. If the config of an existing
    run cannot be read, a UserError is raised after that run has been yielded.
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
        is_gone = init not in PUBLISHED_WEIGHTS and not Path(init).exists()
        run = RunFolder(Path(init)) if is_gone else find_run_of_init(init)


def is_grid_folder(folder: Path) -> bool:
    """Return whether a folder contains the runs of a comparison or study."""
    return (folder / GRID_FILE).is_file()


def read_scores(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """Read `judged.json` beside a run of a comparison or study; return scores by evaluation protocol, then by name."""
    content = RunFolder(folder).read_json(SCORES_FILE)
    try:
        return {
            str(protocol): {str(name): float(value) for name, value in scores_by_name.items()}
            for protocol, scores_by_name in content["scores"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(
            f"{str(folder / SCORES_FILE)!r} is damaged ({problem}): remove the file and run again."
        ) from problem
