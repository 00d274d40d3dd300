"""The recipe of the Python guest's binary: upstream's files, checked and patched.

Only a build uses this package; nothing of it is installed. `recipe.py` is the way in.
"""
