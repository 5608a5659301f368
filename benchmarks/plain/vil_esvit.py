"""EsViT's Vision Longformer: the program is that of the paper's, with other widths, depths and heads."""

from plain.vil import Plain as Plain
