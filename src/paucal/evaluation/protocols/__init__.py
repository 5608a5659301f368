"""Evaluation of frozen backbones as in the papers: k-NN, linear probe, logistic suite, correspondence, few labels."""
