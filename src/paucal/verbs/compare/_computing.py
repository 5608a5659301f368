"""The former module of `work_silently`, kept for SLURM jobs that were submitted before the function was moved."""

from paucal.verbs.compare._work import work_silently as work_silently
