"""Interfaces of agent frameworks, each in a file of its own, over the public names of this package.

No framework is a dependency: a file imports its framework, and only programs that use it import the
file.
"""
