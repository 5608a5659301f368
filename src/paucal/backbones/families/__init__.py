"""The papers' backbones that timm lacks, registered with timm: one family per module."""
