"""Pretrained weights: the table from which runs choose, and the weights on this machine."""
