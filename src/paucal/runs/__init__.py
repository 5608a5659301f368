"""The run folder: create, read, write atomically."""

from paucal.runs.files import csv_text, folder_in_place, keep_as, write_atomically, write_text
from paucal.runs.folder import RunFolder, create_run, describe_environment, open_model_folder, open_run

__all__ = [
    "RunFolder",
    "create_run",
    "csv_text",
    "describe_environment",
    "folder_in_place",
    "keep_as",
    "open_model_folder",
    "open_run",
    "write_atomically",
    "write_text",
]
