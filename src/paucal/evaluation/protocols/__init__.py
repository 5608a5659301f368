"""Published evaluation protocols for frozen backbones: k-NN, linear probe, logistic regression, and more."""
