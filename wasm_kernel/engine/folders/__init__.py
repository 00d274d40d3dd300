"""The host's own way through folders that a guest writes to: no link is followed, nothing hangs."""
