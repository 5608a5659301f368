"""The command line, with a file for each verb.

A verb imports what it runs after parsing its arguments: the imports take seconds, and a mistyped flag should fail at
once.
"""
