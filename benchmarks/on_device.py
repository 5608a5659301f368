"""All measurements that need an accelerator, the most valuable first, in pieces that continue from call to call.

    python benchmarks/on_device.py --list
    python benchmarks/on_device.py                       # again and again, until it says that all is done
    python benchmarks/on_device.py --only drloc_overhead memory --minutes 9 --without compiled
    python benchmarks/on_device.py --toy --work /tmp/toy --results /tmp/toy    # on any CPU, tiny: tries the script

Every part is stored as it ends, in `on_device_DEVICE_PIECE.json` with versions, device and spread; a stored part is not
measured again on the same device, and a training that a call could not finish is resumed by the next one. Nothing is
fetched from a network. Image sets are folders of Parquet files (`cifar10/train.parquet`, ...) below --data. Exit code:
0 when all is done, 3 when another call must continue, 1 when a part has failed (see the stored reason; --retry).
"""

import argparse
import sys
import time
from pathlib import Path

import torch

import device_speed
import device_training
from device_state import FAILED, Piece, Session, measure, stored_parts, waiting

HERE = Path(__file__).parent
PIECES: tuple[Piece, ...] = (*device_speed.PIECES, *device_training.PIECES)
DONE, FAULTS, GO_ON = 0, 1, 3


def best_device() -> str:
    """Return the accelerator of this machine, else "cpu"."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def listing(pieces: list[Piece], session: Session) -> str:
    """Return a line per piece: how far it is, what it needs, and how long it is guessed to take."""
    lines = []
    for piece in pieces:
        total, left = len(piece.parts(session)), len(waiting(piece, session))
        missing = piece.missing(session)
        state = f"needs {', '.join(missing)}" if missing else f"{total - left} of {total}"
        lines.append(f"{piece.name:15} {state:>16} {piece.minutes:5.1f} min  {piece.title}")
    return "\n".join(lines)


def go(pieces: list[Piece], session: Session, retry: bool) -> int:
    """Measure what is waiting; return the exit code."""
    code = DONE
    for piece in pieces:
        if piece.missing(session):
            print(f"{piece.name}: left out, {', '.join(piece.missing(session))} is not below --data", flush=True)
            continue
        if waiting(piece, session, retry):
            print(f"{piece.name}: {piece.title} ({session.left:.0f} s left)", flush=True)
        if not measure(piece, session, retry, lambda line: print(line, flush=True)):
            print("time is up: run the same command again to continue", flush=True)
            return GO_ON
        if any(FAILED in row for row in stored_parts(piece, session).values()):
            code = FAULTS
    done = "all is done" if session.without is None else f"all is done without {session.without!r}"
    print(done if code == DONE else f"{done}, but some parts failed: --retry measures them again")
    return code


def options_of(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="say what there is to measure, and how far it is")
    parser.add_argument("--only", nargs="+", choices=[piece.name for piece in PIECES], help="these pieces, so ordered")
    parser.add_argument(
        "--without", metavar="WORD", help="leave out parts with this word in their name, for a later call"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="length of this call")
    parser.add_argument("--toy", action="store_true", help="everything tiny, to try the script")
    parser.add_argument("--retry", action="store_true", help="measure what failed again")
    parser.add_argument("--device", choices=["cuda", "mps", "cpu"], help="by default the best there is")
    parser.add_argument("--data", type=Path, nargs="+", help="folders of image sets; default ../shared/data and data")
    parser.add_argument("--work", type=Path, default=HERE.parent / "runs" / "on_device", help="where runs lie")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where results lie")
    parser.add_argument("--copy-to", type=Path, help="put changed results here as well")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Measure, or list; return the exit code."""
    options = options_of(words)
    device = options.device or best_device()
    if device == "cpu" and not (options.toy or options.list):
        print("there is no accelerator: nothing is measured (--toy tries the script on the CPU)", file=sys.stderr)
        return FAULTS
    session = Session(
        device,
        options.toy,
        tuple(options.data or (HERE.parents[1] / "shared" / "data", HERE.parent / "data")),
        options.work,
        options.results,
        options.copy_to,
        time.monotonic() + 60 * options.minutes,
        options.minutes,
        options.without,
    )
    names = {piece.name: piece for piece in PIECES}
    pieces = list(PIECES) if options.only is None else [names[name] for name in dict.fromkeys(options.only)]
    if options.list:
        print(listing(pieces, session))
        return DONE
    options.work.mkdir(parents=True, exist_ok=True)
    return go(pieces, session, options.retry)


if __name__ == "__main__":
    raise SystemExit(main())
