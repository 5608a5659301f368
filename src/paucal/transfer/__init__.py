"""Tasks beyond classes of whole images: boxes and masks, with the project's backbones."""
