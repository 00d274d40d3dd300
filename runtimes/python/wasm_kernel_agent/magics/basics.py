"""The magics that a notebook kernel has beside IPython's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from IPython.core import page
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.utils import openpy

from wasm_kernel_agent import notebooks


@magics_class
class KernelMagics(Magics):
    """Paging, and a shell's few file commands written in Python."""

    shell: Any

    @line_magic
    def less(self, line: str) -> None:
        """Show a file in the pager; Python files are highlighted."""
        self._page(line.strip())

    @line_magic
    def more(self, line: str) -> None:
        """Show a file in the pager."""
        self._page(line.strip())

    def _page(self, name: str) -> None:
        if not name:
            raise UsageError("Missing filename.")
        path = Path(name)
        if path.suffix == ".py":
            source = openpy.read_py_file(name, skip_encoding_cookie=False)
            page.page(self.shell.pycolorize(source))
        else:
            page.page(path.read_text(errors="replace"))

    @line_magic
    def notebook(self, line: str) -> None:
        """Write this session's inputs, results and errors to a notebook: `%notebook FILE.ipynb`.

        What was printed or displayed is not kept in the kernel; save the notebook in the front end
        to have it.
        """
        name = line.strip()
        if not name:
            raise UsageError("%notebook takes a file's name, such as: %notebook session.ipynb")
        notebooks.write(notebooks.of_history(self.shell.history_manager), Path(name).expanduser())
        print(f"Written: {name}")

    @line_magic
    def autosave(self, line: str) -> None:
        """The notebook's front end saves on its own; there is nothing to set in the kernel."""
        print("The autosave interval is set in the notebook's front end.")

    def _command(self, name: str, line: str) -> None:
        self.shell.system(f"{name} {line}")

    @line_magic
    def ls(self, line: str) -> None:
        """List files: `%ls [-a] [-l] [FILE ...]`."""
        self._command("ls", line)

    @line_magic
    def ll(self, line: str) -> None:
        """List files with their sizes and times."""
        self._command("ls -l", line)

    @line_magic
    def cat(self, line: str) -> None:
        """Print files: `%cat FILE ...`."""
        self._command("cat", line)

    @line_magic
    def mkdir(self, line: str) -> None:
        """Make folders: `%mkdir [-p] FOLDER ...`."""
        self._command("mkdir", line)

    @line_magic
    def rmdir(self, line: str) -> None:
        """Remove empty folders: `%rmdir FOLDER ...`."""
        self._command("rmdir", line)

    @line_magic
    def rm(self, line: str) -> None:
        """Remove files: `%rm [-r] [-f] FILE ...`."""
        self._command("rm", line)

    @line_magic
    def cp(self, line: str) -> None:
        """Copy files: `%cp [-r] FILE ... TARGET`."""
        self._command("cp", line)

    @line_magic
    def mv(self, line: str) -> None:
        """Move or rename files: `%mv FILE ... TARGET`."""
        self._command("mv", line)
