"""The command line: the `paucal` program, and modules that each run one or several commands such as `paucal train`.

A command parses its arguments before it imports the modules that do the work, because these imports take seconds and a
mistyped flag should be reported at once.
"""
