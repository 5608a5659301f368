"""`--on` and `--print-script`: runs that are made on a cluster."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from paucal.types import UserError


def run_elsewhere(verb: str, values: Namespace, argv: Sequence[str]) -> int | None:
    """Make a run on a cluster if it was asked for; return the exit code, or None for a run here.

    Args:
        verb: Verb that makes the run.
        values: All values of the call.
        argv: Its arguments.

    Raises:
        UserError: A package is missing, the cluster refuses the run, or the run folder is taken.
    """
    if values.on is None and values.print_script is None:
        if values.slurm is not None:
            raise UserError("--slurm gives options of SLURM jobs: use it with --on slurm or --print-script slurm.")
        return None
    if values.time_limit is not None:  # a run that reaches it would be requeued, or stay unfinished
        flag = "--on" if values.print_script is None else "--print-script"
        raise UserError(f"--time-limit is not supported with {flag}: give SLURM the limit, --slurm timeout_min=600.")
    # Imported here: they take seconds, and most runs are made on this machine.
    from paucal.runner.elsewhere import scripts, slurm
    from paucal.runner.elsewhere.command import command_of
    from paucal.runner.elsewhere.packages import require_package, require_sbatch, slurm_options

    options = slurm_options(values.slurm or ())
    if values.print_script is None:
        require_package("slurm")
        require_sbatch()
    elif values.output is None and values.resume is None:
        raise UserError("--print-script needs --output: the run folder, on a disk that all machines share.")
    command = command_of(verb, argv, values.output, values.resume)
    devices, nodes = values.devices or 1, values.nodes or 1
    on_gpu = values.device in (None, "cuda")
    if values.print_script is not None:
        script = scripts.slurm_script(command, devices, nodes, on_gpu, options)
        Path(command.run).parent.mkdir(parents=True, exist_ok=True)  # SLURM writes the log there, and makes no folder
        print(script, end="")
    else:
        print(slurm.describe(slurm.submit(command, devices, nodes, on_gpu, options), command))
    return 0
