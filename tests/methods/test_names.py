"""The one-line descriptions of methods and extra losses."""

from paucal.methods import names, pretraining, training


def test_names__are_those_of_the_methods_and_losses():
    assert names.TRAINING_METHODS.keys() == training.METHODS.keys()
    assert names.EXTRA_LOSSES.keys() == training.EXTRA_LOSSES.keys()
    assert names.PRETRAINING_METHODS.keys() == pretraining.METHODS.keys()


def test_describe_names__gives_each_name_with_its_description():
    assert names.describe_names({"a": "first", "b": "second"}) == "a (first); b (second)"
