"""Several processes that work together; forked from the test where possible, so that none imports torch again."""

import multiprocessing
import os
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

# Once a GPU has been used, a forked process can train no more; elsewhere than on Linux forking is unsafe.
METHOD = "fork" if sys.platform == "linux" and not torch.accelerator.is_available() else "spawn"


def run_together(function: Callable[..., None], *arguments: Any, launched: bool = False) -> None:
    """Call a function of a module in two processes, with the number of the process and some arguments.

    With `launched`, both have the environment variables that torchrun sets, and may train.
    """
    assert exit_codes(function, *arguments, count=2, launched=launched) == [0, 0]


def start(function: Callable[..., object], *arguments: Any) -> Any:
    """Start a process that calls a function of a module, and that does not outlive this one."""
    process = multiprocessing.get_context(METHOD).Process(target=function, args=arguments, daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks where there are threads
        process.start()
    return process


def exit_codes(
    function: Callable[..., None], *arguments: Any, count: int = 1, launched: bool = False
) -> list[int | None]:
    """Call a function as `run_together` does in `count` processes, and return their exit codes."""
    method = "spawn" if launched and METHOD == "fork" and not _can_fork_to_train() else METHOD
    context = multiprocessing.get_context(method)
    port = _free_port() if launched else None
    processes = [
        context.Process(target=_run, args=(function, number, _variables(number, count, port), arguments))
        for number in range(count)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks where there are threads
        for process in processes:
            process.start()
    try:
        for process in processes:
            process.join(240)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()


def _can_fork_to_train() -> bool:
    """Return whether forked processes can train: not once autograd has started threads in this process."""
    probe = multiprocessing.get_context("fork").Process(target=_compute_gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks where there are threads
        probe.start()
    probe.join()
    return probe.exitcode == 0


def _compute_gradient() -> None:
    try:
        torch.ones(1, requires_grad=True).sum().backward()
    except RuntimeError:  # "Unable to handle autograd's threading in combination with fork-based multiprocessing"
        sys.exit(1)


def _run(function: Callable[..., None], number: int, variables: Mapping[str, str], arguments: tuple[Any, ...]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(variables)
    function(number, *arguments)


def _variables(number: int, count: int, port: int | None) -> dict[str, str]:
    if port is None:
        return {}
    rank, size = str(number), str(count)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
