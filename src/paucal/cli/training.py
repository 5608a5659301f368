"""The training commands: `paucal train`, `pretrain`, `segment` and `detect`, on this machine or on a cluster."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from paucal.cli.arguments import CommandParser, add_data_arguments, add_settings, format_choices, parse_arguments
from paucal.tasks.table import job_of, settings_of
from paucal.types import UserError

DESCRIPTIONS = {
    "train": """Train a classifier on a folder of images and evaluate the classifier on held-out test images.
Settings that you do not give are chosen from the data, and printed with the reason.
Without DATA, the command trains on the built-in digits, which takes about a minute on two CPU cores. With --target
COLUMN, the model predicts a number instead of a class.""",
    "pretrain": """Pre-train a backbone on images without labels, by self-distillation of views and regions (EsViT).
Settings that you do not give are chosen from the images, and printed with the reason. The run detects and reports
collapse. Without DATA, the command trains on the built-in digits, which takes about two minutes on two CPU cores.""",
    "segment": """Train a network that classifies every pixel, and evaluate the network on held-out test images.
DATA is a folder that contains a folder of images and a folder of masks with the same file names (images/ and masks/).
Settings that you do not give are chosen from the data, and printed with the reason.""",
    "detect": """Train a detector on images with boxes and evaluate it on images that it has not seen.
DATA is a folder, an archive or an annotation file in a common format such as COCO or YOLO. Settings
that you do not give are chosen from the images and the machine, and printed with the reason.
'paucal predict RUN IMAGES' finds objects with the trained detector.""",
}


def run(verb: str, argv: Sequence[str]) -> int:
    """Run a training command; return the exit code, which is 130 if the run was stopped before its end."""
    values, given, given_settings = parse_run_arguments(verb, DESCRIPTIONS[verb], settings_of(verb), argv)
    if _is_for_cluster(values):
        return _run_on_cluster(verb, values, argv)
    from paucal.runner.clock import command_start
    from paucal.runner.console import Console
    from paucal.runner.life import Stopped, begin, resume, show_config

    is_new_run = "resume" not in given and not values.print_config
    if verb == "train" and values.folds is not None and values.target is None and is_new_run:
        from paucal.tasks.classification.folds import train_folds

        result = train_folds(settings_of(verb)(**given_settings), given, Console())
        return 130 if isinstance(result, Stopped) else 0
    if verb == "train":
        from paucal.tasks.train import read_target, select_job

        job = select_job(read_target(values.resume) if "resume" in given else values.target)
    else:
        job = job_of(verb)
    if values.print_config:
        print(show_config(job, job.settings_type(**given_settings), given), end="")
        return 0
    if "resume" in given:
        result = resume(job, values.resume, Console(), given_settings)
    else:
        result = begin(job, job.settings_type(**given_settings), given, Console(), start_time=command_start())
    return 130 if isinstance(result, Stopped) else 0


def parse_run_arguments(
    verb: str, description: str, settings: type, argv: Sequence[str]
) -> tuple[Namespace, dict[str, str], dict[str, Any]]:
    """Parse a flag for each setting, and the arguments that all training commands have.

    Returns:
        All values; the origin ("flag" or "config") of each value that the user gave; and the settings that the user
        gave, by name.
    """
    parser, fields_by_name = CommandParser(verb, description), {item.name: item for item in fields(settings)}
    add_data_arguments(parser, fields_by_name["data"].metadata["help"])
    parser.add_argument(
        "--resume",
        nargs="?",
        const="runs",
        metavar="RUN",
        help="resume a stopped run, by default the newest; give DATA if its images have been moved",
    )
    parser.hints["print_config"] = bool
    parser.add_argument("--print-config", action="store_true", help="print all settings with their reasons, and stop")
    clusters, scripts = Literal["slurm", "ray"], Literal["slurm", "kuberay"]
    parser.hints |= {"on": clusters, "slurm": list[str], "print_script": scripts}
    # If these flags were allowed in a config, the command that runs on the cluster would start another job.
    parser.flag_only_names |= {"on", "slurm", "print_script"}
    group = parser.add_argument_group("clusters")
    text = "run as a SLURM job or on a Ray cluster; resumed automatically when machines are lost"
    group.add_argument("--on", metavar=format_choices(clusters), help=text)
    text = "options of the SLURM job by submitit's names, such as slurm_partition=gpu timeout_min=600"
    group.add_argument("--slurm", nargs="+", metavar="NAME=VALUE", help=text)
    text = "print a script for a run on a cluster, and stop"
    group.add_argument("--print-script", metavar=format_choices(scripts), help=text)
    add_settings(parser, settings, skip=["data"])
    values, given = parse_arguments(parser, argv)
    if given.pop("subject", None):
        if given.get("data") == "flag" and values.data != values.subject:
            raise UserError(f"DATA is {values.subject!r} and --data is {values.data!r}: remove DATA or --data.")
        values.data, given["data"] = values.subject, "flag"
    return values, given, {name: getattr(values, name) for name in given if name in fields_by_name}


def _is_for_cluster(values: Namespace) -> bool:
    """Return whether to start the run on a cluster (--on) or to print its script (--print-script); check the flags."""
    is_for_slurm = "slurm" in (values.on, values.print_script)
    if values.slurm is not None and not is_for_slurm:
        raise UserError("--slurm is for SLURM jobs: give --on slurm or --print-script slurm, or remove --slurm.")
    if values.time_limit is not None and is_for_slurm:
        # If the run ended itself at its time limit, the job would be requeued, or the run would stay unfinished.
        flag = "--on" if values.print_script is None else "--print-script"
        raise UserError(
            f"--time-limit is not supported with {flag} slurm: give the limit to SLURM, as in --slurm timeout_min=600."
        )
    return values.print_script is not None or (values.on is not None and not values.print_config)


def _run_on_cluster(verb: str, values: Namespace, argv: Sequence[str]) -> int:
    """Print a script, submit a SLURM job, or run on Ray until the run ends; return the exit code."""
    from paucal.runner.elsewhere import scripts, slurm
    from paucal.runner.elsewhere.command import command_of
    from paucal.runner.elsewhere.packages import require_package, require_sbatch, slurm_options

    options = slurm_options(values.slurm or ())
    if values.print_script is None:
        require_package(values.on)
        if values.on == "slurm":
            require_sbatch()
    elif values.output is None and values.resume is None:
        raise UserError("--print-script needs --output: a run folder on a disk that all machines share.")
    command = command_of(verb, argv, values.output, values.resume)
    devices, nodes, on_gpu = values.devices or 1, values.nodes or 1, values.device in (None, "cuda")
    if values.print_script == "kuberay":
        print(scripts.kuberay_job(command, devices, nodes, on_gpu), end="")
    elif values.print_script == "slurm":
        script = scripts.slurm_script(command, devices, nodes, on_gpu, options)
        # SLURM writes its log beside the run folder, but does not create the parent folder of the log.
        Path(command.run).parent.mkdir(parents=True, exist_ok=True)
        print(script, end="")
    elif values.on == "ray":
        from paucal.runner.elsewhere import ray

        print(f"the run will be in {command.run}, the logs are in {command.logs}", flush=True)
        return 0 if ray.train_on_ray(command, devices * nodes, values.device) else 130
    else:
        job = slurm.submit(command, devices, nodes, on_gpu, options)
        print(slurm.describe(job, command))
    return 0
