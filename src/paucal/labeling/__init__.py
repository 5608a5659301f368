from paucal.labeling.teacher import DenseTeacher, write_maps

__all__ = ["DenseTeacher", "write_maps"]
