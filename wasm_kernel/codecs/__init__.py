"""Codecs: WebAssembly modules of their own that read and write file formats for a guest."""
