"""The ways out of a session into its notebook's folder: `%session_publish` and `folder=write`.

`publish` and `write_back` are the two in the kernel; `place` holds the broker's handlers, which
write through one `FolderWriter` with one `FolderRecord`.
"""
