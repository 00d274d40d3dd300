"""The net below the sandbox: what the kernel's own process gives up once it needs it no more."""
