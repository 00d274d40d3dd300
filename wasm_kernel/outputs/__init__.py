"""A MIME bundle in, a MIME bundle out that is safe to show.

`bundle.clean` does it for rich outputs, `terminal` for plain text, and `widgets.WidgetGate` for the
guest's messages to widgets. Nothing here knows a session, a guest or Jupyter. The libraries that
only some outputs need (`nh3`, `tinycss2`, `markdown_it`) are imported with the first such output.
"""
