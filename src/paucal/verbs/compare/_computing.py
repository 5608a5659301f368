"""The earlier module of `work_silently`, by which SLURM jobs that were submitted before it moved still import it."""

from paucal.verbs.compare._work import work_silently as work_silently
