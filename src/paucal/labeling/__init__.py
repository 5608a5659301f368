from paucal.labeling.teacher import DenseTeacher
from paucal.labeling.write import write_maps

__all__ = ["DenseTeacher", "write_maps"]
