"""The command line, with one module for each verb (`paucal VERB`).

A verb imports the modules that it runs only after parsing its arguments: these imports take seconds, and a mistyped
flag should be reported at once.
"""
