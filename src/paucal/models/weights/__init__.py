"""Trained weights on this machine: the table of candidates, and weights that the user has added."""
