"""Trained models: the card that describes one, and how a stored or a named one is opened."""
