"""Make many calls and count them: `PYTHONPATH=tests python -m fuzz --calls 10000 --seed 0 --report FILE`.

A report that is there is gone on with. Calls come in blocks, each of which is the same for the same seed.
"""

import argparse
import json
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.calls import Caller
from fuzz.cases import KINDS
from fuzz.trial import Trial, trial

BLOCK = 25
WEIGHT = {
    "fitting": 4,
    "flag": 4,
    "flags": 4,
    "run": 3,
    "data": 2,
    "overwrite": 1,
}  # blocks of a kind in a round; 1 else
ORDER = [kind for turn in range(4) for kind in KINDS if WEIGHT.get(kind, 1) > turn]


def main() -> None:
    """Read the arguments and make the calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000, help="how many in all, with those of the report")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, required=True, help="JSON file that is gone on with")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), help="only these")
    parser.add_argument("--workspace", type=Path, help="folder to work in, kept; by default one that is removed")
    chosen = parser.parse_args()
    order = [kind for kind in ORDER if not chosen.kinds or kind in chosen.kinds]
    report = Report(chosen.report, chosen.seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, Caller(chosen.workspace or Path(folder)) as caller:
        while report.calls < chosen.calls:
            kind = order[report.content["blocks"] % len(order)]
            begin = time.monotonic()
            for one in block(caller, kind, zlib.crc32(f"{chosen.seed} {report.content['blocks']}".encode())):
                report.count(one)
            report.finish_block(time.monotonic() - begin)
    print(
        json.dumps({name: report.content[name] for name in ("calls", "kinds", "verbs", "codes", "seconds")}, indent=1)
    )
    print(f"{len(report.content['faults'])} distinct faults, see {chosen.report}")


def block(caller: Caller, kind: str, number: int) -> list[Trial]:
    """Make the calls of one block."""
    made: list[Trial] = []

    @seed(number)
    @settings(
        max_examples=BLOCK,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(KINDS[kind])
    def make(case):
        made.append(trial(caller, case))

    make()
    return made


class Report:
    """Counts that are stored after each block."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        counts: dict[str, Any] = {name: {} for name in ("kinds", "verbs", "codes", "slow", "faults")}
        self.content: dict[str, Any] = {"seed": number, "calls": 0, "blocks": 0, "seconds": 0.0, **counts}
        if path.exists():
            self.content = json.loads(path.read_text())
            if self.content["seed"] != number:
                raise SystemExit(f"{path} is of --seed {self.content['seed']}: give that, or another --report.")

    @property
    def calls(self) -> int:
        """How many were made."""
        return self.content["calls"]

    def count(self, one: Trial) -> None:
        """Count a call."""
        self.content["calls"] += 1
        verb = (
            one.case.verb
            if one.case.verb in ("train", "pretrain", "eval", "predict", "explain", "label", "models")
            else "other"
        )
        for name, key in (("kinds", one.case.kind), ("verbs", verb), ("codes", str(one.outcome.code))):
            self.content[name] = dict(Counter(self.content[name]) + Counter([key]))
        for fault in one.faults:
            known = self.content["faults"].setdefault(fault, {"count": 0, "call": str(one.case), "report": str(one)})
            known["count"] += 1
            if len(str(one.case)) < len(known["call"]):
                known |= {"call": str(one.case), "report": str(one)}
            if known["count"] == 1:
                print(one, end="\n\n", flush=True)

    def finish_block(self, seconds: float) -> None:
        """Store what is known."""
        self.content["blocks"] += 1
        self.content["seconds"] = round(self.content["seconds"] + seconds, 1)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.content, indent=1))
        temporary.replace(self.path)


if __name__ == "__main__":
    main()
