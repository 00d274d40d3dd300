"""Linux's own means: confinement of the host's process, descriptors, locks, memory, the broker."""
