"""Processor time of the verbs that only print tables, and of one prediction, beside that of importing timm.

    python benchmarks/start_up.py                                  # the listing verbs
    python benchmarks/start_up.py --run runs/1 --photo photo.jpg   # one prediction and `paucal.load` too

All commands are started afresh, in turn with an import of timm, so that the ratios hold on a busy machine.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile

from measuring import ratio, spread, store, surroundings

REPEATS = 5
VERBS = (
    "--help",
    "train --help",
    "models",
    "recipes",
    "study list",
    "runs {runs}",
    "cache",
    "weights list",
    "completion bash",
)
TIMM = "importing timm"


def processor_seconds(words: list[str]) -> float:
    """Return the user and system seconds that a process takes."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(words)} failed")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="run of a classifier")
    parser.add_argument("--photo", help="photograph to classify")
    arguments = parser.parse_args()
    paucal = shutil.which("paucal") or sys.exit("paucal is not installed")
    cold: dict[str, list[str]] = {TIMM: [sys.executable, "-c", "import timm"]}
    if arguments.run is not None:
        cold["predict RUN one.jpg"] = [paucal, "predict", arguments.run, arguments.photo]
        cold["paucal.load(RUN)"] = [sys.executable, "-c", f"import paucal; paucal.load({arguments.run!r})"]
    seconds: dict[str, list[float]] = {name: [] for name in (*VERBS, *cold)}
    with tempfile.TemporaryDirectory() as runs:
        run = os.path.join(runs, "first")
        os.mkdir(run)
        with open(os.path.join(run, "config.yaml"), "w", encoding="utf-8") as file:
            file.write("model: vit_mini\ndata: digits\nseed: 0\n")
        for _ in range(REPEATS):
            for verb in VERBS:
                seconds[verb].append(processor_seconds([paucal, *verb.format(runs=runs).split()]))
            for name, words in cold.items():
                seconds[name].append(processor_seconds(words))
    others = [name for name in seconds if name != TIMM]
    verbs = {verb: {"seconds": spread(seconds[verb]), "of timm": ratio(seconds, verb, TIMM)} for verb in others}
    store("start_up_cpu", {**surroundings("cpu"), "verbs": verbs, TIMM: spread(seconds[TIMM])})


if __name__ == "__main__":
    main()
