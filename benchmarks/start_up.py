"""Processor time of the verbs that only print tables, beside that of importing timm in the same run.

python benchmarks/start_up.py
"""

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
    paucal = shutil.which("paucal") or sys.exit("paucal is not installed")
    seconds: dict[str, list[float]] = {name: [] for name in (*VERBS, TIMM)}
    with tempfile.TemporaryDirectory() as runs:
        run = os.path.join(runs, "first")
        os.mkdir(run)
        with open(os.path.join(run, "config.yaml"), "w", encoding="utf-8") as file:
            file.write("model: vit_mini\ndata: digits\nseed: 0\n")
        for _ in range(REPEATS):
            for verb in VERBS:
                seconds[verb].append(processor_seconds([paucal, *verb.format(runs=runs).split()]))
            seconds[TIMM].append(processor_seconds([sys.executable, "-c", "import timm"]))
    verbs = {verb: {"seconds": spread(seconds[verb]), "of timm": ratio(seconds, verb, TIMM)} for verb in VERBS}
    store("start_up_cpu", {**surroundings("cpu"), "verbs": verbs, TIMM: spread(seconds[TIMM])})


if __name__ == "__main__":
    main()
