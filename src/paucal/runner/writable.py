"""Check that an output path can be written before work begins, and choose the format of an output table."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Literal

from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.reading import expand_user_path
from paucal.types import UserError

LONGEST_NAME = ".predictions.csv.4194304.tmp"  # an example of the longest file name in an output folder
# Descriptions of files by file extension, for messages
UNSUPPORTED_FORMATS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers"), "a spreadsheet"),
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".orc", ".avro"), "a columnar file"),
    **dict.fromkeys((".tsv", ".tab"), "a table with tabs"),
    **dict.fromkeys((".jsonl", ".ndjson"), "lines of JSON"),
    **dict.fromkeys((".yaml", ".yml", ".toml", ".xml"), "another format"),
    **dict.fromkeys((".html", ".htm", ".md", ".tex", ".pdf", ".doc", ".docx", ".rtf"), "a document"),
    **dict.fromkeys((".npy", ".npz", ".mat", ".h5", ".hdf5", ".pkl", ".pickle", ".pt", ".pth"), "arrays or objects"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".duckdb"), "a database"),
    **dict.fromkeys((".zip", ".gz", ".bz2", ".xz", ".zst", ".tar", ".7z"), "an archive"),
    **dict.fromkeys(IMAGE_SUFFIXES, "an image"),
}


def check_folder_writable(path: Path, flag: str = "--output") -> None:
    """Raise a UserError unless files can be written into a folder (which may not exist yet); leave no file behind."""
    _try_to_write(path, LONGEST_NAME, path, flag)


def _try_to_write(path: Path, name: str, target: Path, flag: str) -> None:
    """Create a file `name` in the folder `path` and remove it again; the error message of a failure names `target`."""
    created: list[Path] = []
    try:
        for folder in (*reversed(path.absolute().parents), path.absolute()):
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not folder.is_dir():
                folder.mkdir()
                created.append(folder)
        with tempfile.TemporaryDirectory(dir=path, prefix=".paucal-", ignore_cleanup_errors=True) as probe:
            Path(probe, name).touch()
    except (OSError, ValueError) as problem:
        raise UserError(_format_write_error(target, flag, problem)) from problem
    finally:
        for folder in reversed(created):
            try:
                folder.rmdir()
            except OSError:  # another process uses the folder
                break


def check_file_writable(path: Path, flag: str = "--output") -> None:
    """Raise a UserError unless a new file can be written at `path`; leave no file behind."""
    try:
        is_taken = path.exists() or path.is_symlink()
    except (OSError, ValueError) as problem:  # the name is too long
        raise UserError(_format_write_error(path, flag, problem)) from problem
    if is_taken:
        raise UserError(f"{flag}: {str(path)!r} exists already: choose another name, or remove it.")
    temporary = f".{path.name}.{os.getpid()}.tmp"  # the name of the temporary file in `write_atomically`
    _try_to_write(path.parent, temporary, path, flag)


def _format_write_error(path: Path, flag: str, problem: Exception) -> str:
    reason = getattr(problem, "strerror", None) or str(problem)
    path_text = str(path) if len(str(path)) <= 120 else f"{str(path)[:120]}..."
    return f"{flag}: {path_text!r} cannot be written ({reason[0].lower()}{reason[1:]}): give another folder or name."


TableFormat = Literal["csv", "json"]
FORMATS: dict[str, TableFormat] = {".csv": "csv", ".json": "json"}


def resolve_table(text: str, table_format: TableFormat | None = None) -> tuple[Path, TableFormat]:
    """Return the path and format of an output table; without `table_format`, by the file extension, else CSV."""
    path = expand_user_path(text)
    extension = path.suffix.lower()
    if extension in UNSUPPORTED_FORMATS:
        raise UserError(
            f"--output: {text[:120]!r} is the name of {UNSUPPORTED_FORMATS[extension]}; tables are written as .csv or "
            ".json: use one of these extensions."
        )
    format_of_extension = FORMATS.get(extension)
    if table_format is not None and format_of_extension not in (None, table_format):
        raise UserError(
            f"--output: {text[:120]!r} ends in {extension}, but --format is {table_format}: "
            "change --output or --format."
        )
    if not path.parent.exists():
        raise UserError(f"there is no folder for {text[:120]!r}: create the folder, or choose another --output.")
    check_file_writable(path)
    return path, table_format or format_of_extension or "csv"
