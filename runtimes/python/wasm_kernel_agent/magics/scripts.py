"""`%%bash`, `%%python` and the like: cells that are scripts of the shell."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class

from wasm_kernel_agent.shell_commands import Finished, run_script

_OPTIONS = re.compile(r"(?<!\S)--(?:(no-raise-error|bg)(?!\S)|(out|err|proc)[ =] *(\S+)) *")
_NO_BACKGROUND = "a script has ended when its cell ends: leave --bg and --proc out"
_INTERPRETERS = ("python", "python3")
_NONE: Mapping[str, Any] = {}


@magics_class
class ScriptMagics(Magics):
    """Cells that are scripts."""

    @cell_magic
    def bash(self, line: str, cell: str) -> None:
        """Run the cell as a script: `%%bash [--no-raise-error] [--out NAME] [--err NAME] [WORDS]`.

        The words are the script's arguments; bash's `-s`, `-e`, `-u`, `-x` and `-o NAME` may stand
        before them. `--out` and `--err` name variables that take what the script prints. Variables
        of the script, and the folder that it changes to, end with it. If its last command fails,
        so does the cell, unless `--no-raise-error` is given.

            %%bash
            for name in *.csv; do
                echo "$name: $(wc -l < "$name")"
            done
        """
        self._run_bash(line, cell)

    @cell_magic
    def sh(self, line: str, cell: str) -> None:
        """Run the cell as a script; the same as `%%bash`."""
        self._run_bash(line, cell)

    @cell_magic
    def python(self, line: str, cell: str) -> None:
        """Run the cell as a Python program of its own, without the notebook's variables."""
        self._run_python(line, cell)

    @cell_magic
    def python3(self, line: str, cell: str) -> None:
        """Run the cell as a Python program of its own; the same as `%%python`."""
        self._run_python(line, cell)

    @cell_magic
    def script(self, line: str, cell: str) -> None:
        """Run the cell as a script for a program: `%%script bash`, `%%script python`."""
        options, rest = self._parsed(line)
        program, _, rest = rest.partition(" ")
        if program in ("bash", "sh"):
            self._run_bash(rest, cell, options)
        elif program in _INTERPRETERS:
            self._run_python(rest, cell, options)
        else:
            raise UsageError(f"{program!r} can't run: the sandbox has bash, sh and python alone")

    def _run_bash(self, line: str, cell: str, before: Mapping[str, Any] = _NONE) -> None:
        options, rest = self._parsed(line, "seuxo:")
        words = [word for word in shlex.split(rest) if word != "-"]
        flags = [f"-{flag}" for flag in "eux" if flag in options]
        if "o" in options:
            flags += ["-o", options["o"]]
        first = f"set {shlex.join([*flags, '--', *words])}; " if flags or words else ""
        self._end(run_script(first + cell), {**before, **options}, cell)

    def _run_python(self, line: str, cell: str, before: Mapping[str, Any] = _NONE) -> None:
        options, rest = self._parsed(line)
        words = [word for word in shlex.split(rest) if word != "-"]
        program = shlex.join(["python", "-", *words])
        self._end(run_script(program, cell.encode()), {**before, **options}, cell)

    def _parsed(self, line: str, flags: str = "") -> tuple[Any, str]:
        """Returns a line's options, and the rest of it; options end at the first other word."""
        named = {flag or name: value for flag, name, value in _OPTIONS.findall(line)}
        if named.keys() & {"bg", "proc"}:
            raise UsageError(_NO_BACKGROUND)
        found, rest = self.parse_options(_OPTIONS.sub("", line), flags, posix=False)
        return {**found, **named}, rest

    def _end(self, finished: Finished, options: Any, cell: str) -> None:
        """Shows a script's output; raises `CalledProcessError` if it failed."""
        shell: Any = self.shell
        outputs = {"out": (finished.stdout, sys.stdout), "err": (finished.stderr, sys.stderr)}
        for option, (text, stream) in outputs.items():
            if option in options:
                shell.user_ns[options[option]] = text
            else:
                stream.write(text)
        if finished.status and "no-raise-error" not in options:
            raise subprocess.CalledProcessError(finished.status, cell)
