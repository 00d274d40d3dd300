"""The ways out of a session into its notebook's folder: `%session_publish` and `folder=write`.

`publish` and `write_back` each hold a command's side in the kernel and its handler in the broker.
`published_folder` and `written_folder` are the user's folder as each of them changes it.
"""
