"""Frozen backbones judged as the papers do: k-NN, linear probe, logistic suite, correspondence, few labels."""
