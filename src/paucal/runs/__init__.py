"""Create, open and read run folders."""

from paucal.runs.folder import RunFolder, create_run, describe_environment, open_model_folder, open_run

__all__ = ["RunFolder", "create_run", "describe_environment", "open_model_folder", "open_run"]
