"""`paucal cache`: the disk space that decoded images and features take on this machine, and how to free it."""

import shutil
from collections.abc import Callable, Sequence

from paucal.cli.arguments import VerbParser, parse

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
    from paucal.data.decoded import cache_folder as cache
    from paucal.runner.plain_console import PlainConsole
    from paucal.wording import counted

    console, folder = PlainConsole(soft_wrap=True), cache.cache_folder()

    def show(name: str, content: str, n_bytes: int, clear: Callable[[], object], noun: str) -> None:
        console.print(f"{name}: {content}", markup=False)
        if values.clear:
            freed = clear()  # number of bytes, or None if everything was removed
            n_bytes = freed if isinstance(freed, int) else n_bytes
            console.print(f"removed {n_bytes / MIB:.0f} MiB of {noun}", markup=False)

    if folder is None:
        console.print(f"decoded images: not kept ({cache.VARIABLE} is {cache.OFF})", markup=False)
    else:
        entries = cache.list_entries(folder)
        total = sum(entry.n_bytes for entry in entries)
        most = f"of at most {cache.MAX_BYTES // 2**30} GiB, in {folder}"
        text = f"{counted(len(entries), 'set')}, {total / MIB:.0f} MiB {most}"
        show("decoded images", text, total, lambda: cache.clear_cache(folder), "decoded images")
        if fetched := cache.folder_bytes(folder / cache.SHARDS):
            text = f"{fetched / MIB:.0f} MiB of fetched ones and of indices, in {folder}"
            show("shards", text, fetched, lambda: cache.clear_fetched(folder), "shards")
        if copies := cache.folder_bytes(folder / cache.STORED_RUNS):
            text = f"{copies / MIB:.0f} MiB of copies of runs on object storage, in {folder}"
            show("runs", text, copies, lambda: cache.clear_stored_runs(folder), "copies of runs")
    if unpacked := cache.folder_bytes(cache.unpacked_folder()):
        place = cache.unpacked_folder()
        text = f"{unpacked / MIB:.0f} MiB of unpacked masks, in {place}"
        show("archives", text, unpacked, lambda: shutil.rmtree(place, ignore_errors=True), "unpacked masks")
    features = sorted(cache.features_folder().glob("*.safetensors"))
    size = sum(file.stat().st_size for file in features)
    text = f"{counted(len(features), 'file')}, {size / MIB:.0f} MiB, in {cache.features_folder()}"
    show("features", text, size, lambda: [file.unlink(missing_ok=True) for file in features], "features")
    return 0
