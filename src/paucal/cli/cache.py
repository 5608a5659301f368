"""`paucal cache`: the disk space that decoded images and features take on this machine, and how to free it."""

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paucal.cli.arguments import VerbParser, parse

if TYPE_CHECKING:
    from pathlib import Path

    from paucal.runner.plain_console import PlainConsole

DESCRIPTION = (
    "Show what paucal keeps between runs: decoded images, so that only the first run decodes them, and features "
    "of frozen models. Everything can be removed at any time; runs compute it again when needed."
)
MIB = 2**20


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("cache", DESCRIPTION)
    parser.add_argument("--clear", action="store_true", help="remove it")
    values, _ = parse(parser, argv)
    from paucal.data.decoded.cache_folder import (
        OFF,
        VARIABLE,
        cache_folder,
        features_folder,
        unpacked_bytes,
        unpacked_folder,
    )
    from paucal.runner.plain_console import PlainConsole
    from paucal.wording import counted

    console, folder = PlainConsole(soft_wrap=True), cache_folder()
    if folder is None:
        console.print(f"decoded images: not kept ({VARIABLE} is {OFF})", markup=False)
    else:
        _print_cache(folder, values.clear, console)
    unpacked = unpacked_bytes()
    if unpacked:
        console.print(f"archives: {unpacked / MIB:.0f} MiB of unpacked masks, in {unpacked_folder()}", markup=False)
        if values.clear:
            shutil.rmtree(unpacked_folder(), ignore_errors=True)
            console.print(f"removed {unpacked / MIB:.0f} MiB of unpacked masks", markup=False)
    features = sorted(features_folder().glob("*.safetensors"))
    size = sum(file.stat().st_size for file in features)
    text = f"{counted(len(features), 'file')}, {size / MIB:.0f} MiB"
    console.print(f"features: {text}, in {features_folder()}", markup=False)
    if values.clear:
        for file in features:
            file.unlink(missing_ok=True)
        console.print(f"removed {size / MIB:.0f} MiB of features", markup=False)
    return 0


def _print_cache(folder: "Path", is_cleared: bool, console: "PlainConsole") -> None:
    """Print the content of the image cache, and clear it if requested."""
    from paucal.data.decoded.cache_folder import (
        MAX_BYTES,
        clear_cache,
        clear_fetched,
        clear_stored_runs,
        fetched_bytes,
        list_entries,
        stored_runs_bytes,
    )
    from paucal.wording import counted

    entries = list_entries(folder)
    total = sum(entry.n_bytes for entry in entries)
    text = f"{counted(len(entries), 'set')}, {total / MIB:.0f} MiB of at most {MAX_BYTES // 2**30} GiB"
    console.print(f"decoded images: {text}, in {folder}", markup=False)
    if is_cleared:
        console.print(f"removed {clear_cache(folder) / MIB:.0f} MiB of decoded images", markup=False)
    fetched = fetched_bytes(folder)
    if fetched:
        console.print(f"shards: {fetched / MIB:.0f} MiB of fetched ones and of indices, in {folder}", markup=False)
        if is_cleared:
            console.print(f"removed {clear_fetched(folder) / MIB:.0f} MiB of shards", markup=False)
    if copies := stored_runs_bytes(folder):
        console.print(f"runs: {copies / MIB:.0f} MiB of copies of runs on object storage, in {folder}", markup=False)
        if is_cleared:
            console.print(f"removed {clear_stored_runs(folder) / MIB:.0f} MiB of copies of runs", markup=False)
