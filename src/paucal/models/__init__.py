"""Trained models: the card that describes a model, and functions to open a stored or a named model."""
