"""The report of a run, written again where more is known of it."""

from collections.abc import Callable

from paucal.report.page import NAME, write_report
from paucal.report.pretraining import write_pretraining_report
from paucal.runs import RunFolder
from paucal.types import UserError

WRITERS = {"train": write_report, "pretrain": write_pretraining_report}


def renew_report(run: RunFolder, say: Callable[[str], None]) -> None:
    """Write the report of a run of `paucal train` or `paucal pretrain` again, with what was judged since.

    A report that cannot be written fails nothing: what was judged is stored.

    Args:
        run: whose report there is; without one nothing happens.
        say: told where the report lies, or why it is as it was.
    """
    write = WRITERS.get(run.verb)
    if write is None or not (run.path / NAME).is_file():
        return
    try:
        say(f"the report of the run shows it: {write(run.path)}")
    except (UserError, OSError) as problem:
        say(f"note: the report of the run is as it was ({problem})")
