"""`python -m wasm_kernel -f CONNECTION_FILE` runs a Jupyter kernel."""

import sys

if __name__ == "__main__":
    # Python put the current folder first: the notebook's own. A file there named like a module
    # would otherwise run outside the sandbox, with all rights.
    if not sys.flags.safe_path:
        del sys.path[0]
    from wasm_kernel.frontends.jupyter.ports import listen

    ports = listen(sys.argv[1:])  # first: a client is about to connect
    from wasm_kernel.frontends.jupyter.launcher import KernelLaunch, launch

    forker = launch(ports)  # returns only if this process must be the kernel

    import gc

    gc.disable()  # a start frees few of its objects; the kernel's loop turns it on again
    from wasm_kernel.frontends.jupyter.startup import without

    with without("ssl"):  # asyncio imports it if it can; this process opens no connections
        import asyncio  # noqa: F401
    from wasm_kernel.frontends.jupyter.app import main

    main(launch=KernelLaunch(forker, ports))
