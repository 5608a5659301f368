"""The output table of a command: choose its format by the file extension, and check that it can be written."""

from pathlib import Path
from typing import Literal

from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.reading import expand_user_path
from paucal.runs.writable import check_file_writable
from paucal.types import UserError

TableFormat = Literal["csv", "json"]
FORMATS: dict[str, TableFormat] = {".csv": "csv", ".json": "json"}
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
