"""Brings the pictures of benchmarks, which pages show from outside this folder, into the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
RESULTS = "benchmarks/results"
OUTSIDE = re.compile(rf"\]\(((?:\.\./)*)\.\./{RESULTS}/")  # one step more than the page is deep leads out of docs/


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pictures."""
    for path in sorted((ROOT / RESULTS).glob("*.png")):
        files.append(File.generated(config, f"{RESULTS}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point to them."""
    return OUTSIDE.sub(rf"](\1{RESULTS}/", markdown)
