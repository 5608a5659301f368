"""Trained models: the model card (`model.json`), and opening models by the path of a run or by name."""
