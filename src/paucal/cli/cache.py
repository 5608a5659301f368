"""`paucal cache`: show the disk space that cached files take up on this machine, or remove these files."""

import shutil
from collections.abc import Callable, Sequence

from paucal.cli.arguments import CommandParser, parse_arguments

DESCRIPTION = (
    "Show the files that paucal caches between runs: decoded images, so that only the first run decodes them, and "
    "features of frozen models. Cached files can be removed at any time; runs compute them again when needed."
)
MIB = 2**20


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("cache", DESCRIPTION)
    parser.add_argument("--clear", action="store_true", help="remove the cached files")
    values, _ = parse_arguments(parser, argv)
    from paucal.data.decoded import cache_folder as cache
    from paucal.runner.plain_console import PlainConsole
    from paucal.wording import counted

    console, folder = PlainConsole(soft_wrap=True), cache.cache_folder()

    def show_or_clear(name: str, description: str, n_bytes: int, clear: Callable[[], object], noun: str) -> None:
        console.print(f"{name}: {description}", markup=False)
        if values.clear:
            freed = clear()  # the number of removed bytes; a result of another type means that all were removed
            n_bytes = freed if isinstance(freed, int) else n_bytes
            console.print(f"removed {n_bytes / MIB:.0f} MiB of {noun}", markup=False)

    if folder is None:
        console.print(f"decoded images: not cached ({cache.CACHE_VARIABLE} is {cache.OFF})", markup=False)
    else:
        entries = cache.list_entries(folder)
        total = sum(entry.n_bytes for entry in entries)
        limit = f"of at most {cache.MAX_BYTES // 2**30} GiB, in {folder}"
        text = f"{counted(len(entries), 'set')}, {total / MIB:.0f} MiB {limit}"
        show_or_clear("decoded images", text, total, lambda: cache.clear_cache(folder), "decoded images")
        if shard_bytes := cache.folder_bytes(folder / cache.SHARDS):
            text = f"{shard_bytes / MIB:.0f} MiB of downloaded shards and indices, in {folder}"
            show_or_clear("shards", text, shard_bytes, lambda: cache.clear_downloaded_shards(folder), "shards")
        if run_bytes := cache.folder_bytes(folder / cache.STORED_RUNS):
            text = f"{run_bytes / MIB:.0f} MiB of copies of runs on object storage, in {folder}"
            show_or_clear("runs", text, run_bytes, lambda: cache.clear_stored_runs(folder), "copies of runs")
    if mask_bytes := cache.folder_bytes(cache.unpacked_archives_folder()):
        mask_folder = cache.unpacked_archives_folder()
        text = f"{mask_bytes / MIB:.0f} MiB of unpacked masks, in {mask_folder}"
        show_or_clear(
            "archives", text, mask_bytes, lambda: shutil.rmtree(mask_folder, ignore_errors=True), "unpacked masks"
        )
    features = sorted(cache.features_folder().glob("*.safetensors"))
    size = sum(file.stat().st_size for file in features)
    text = f"{counted(len(features), 'file')}, {size / MIB:.0f} MiB, in {cache.features_folder()}"
    show_or_clear("features", text, size, lambda: [file.unlink(missing_ok=True) for file in features], "features")
    return 0
