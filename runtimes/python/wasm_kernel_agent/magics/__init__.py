"""The magics of this kernel, a file for each group."""
