"""Pure-Python packages for a session: found by the user's pip, never run on the host."""
