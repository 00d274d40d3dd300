"""What of a cell's output may be shown: pure functions, a MIME bundle in, a bundle out.

Nothing here knows a session, a guest or Jupyter. What is only needed for some outputs (`nh3`,
`tinycss2`, `markdown_it`) is imported when the first such output comes.
"""
