"""Earlier versions of the workspace's files, so that an undo can bring them back."""
