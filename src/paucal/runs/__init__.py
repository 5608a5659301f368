"""Create, open and read run folders, and write their files atomically."""

from paucal.runs.files import csv_text, link_or_copy, replace_folder, write_atomically, write_text
from paucal.runs.folder import RunFolder, create_run, describe_environment, open_model_folder, open_run

__all__ = [
    "RunFolder",
    "create_run",
    "csv_text",
    "describe_environment",
    "link_or_copy",
    "open_model_folder",
    "open_run",
    "replace_folder",
    "write_atomically",
    "write_text",
]
