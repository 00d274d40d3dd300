"""WebAssembly: compiling, one live instance, its limits. The only importer of wasmtime."""
