"""The records, fields, files and commands that a program of `awk` works on."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wasm_kernel_agent import shell_awk_values as values
from wasm_kernel_agent.shell_awk_parser import Program
from wasm_kernel_agent.shell_awk_tokens import check_name, unescaped
from wasm_kernel_agent.shell_awk_values import UNSET, Failure, InputText, Value, num
from wasm_kernel_agent.shell_options import text_of, write

_SETTING = re.compile(r"([A-Za-z_]\w*)=([\s\S]*)")
_PLAIN = {"CONVFMT": "%.6g", "OFMT": "%.6g", "OFS": " ", "ORS": "\n", "SUBSEP": "\x1c", "FS": " "}
_PLAIN |= {"RS": "\n", "FILENAME": ""}
_COUNTS = {"NR": 0.0, "FNR": 0.0, "RSTART": 0.0, "RLENGTH": -1.0}
_READ = (
    *("num", "is_true", "order", "quotient", "remainder", "power", "calculated", "whole"),
    *("pattern", "replaced", "formatted", "UNSET"),
)


class NextRecord(Exception):
    """A function ends the work on a record."""


class NextFile(Exception):
    """The rest of a file is passed over."""


class _End(Exception):
    """The program has called `exit`."""


def _at(array: dict[str, Value], key: str) -> Value:
    return array.setdefault(key, UNSET)


def _put(array: dict[str, Value], key: str, value: Value) -> Value:
    array[key] = value
    return value


class Records:
    """The records, fields and files of a program, whose code calls the public methods."""

    def __init__(self, program: Program, settings: list[str], words: list[str]) -> None:
        self._program, self._status = program, 0
        self._line, self._fields, self._is_split, self._is_joined = "", list[str](), True, True
        self.ranges = [False] * program.ranges
        self._readers: dict[str, Iterator[str]] = {}
        self._writers: dict[str, Any] = {}
        self._pipes: dict[str, list[str]] = {}
        self._random, self._seed = random.Random(), 0.0
        self.random = self._random.random
        self._main = self._records()
        self._out: list[str] = []
        self.result, self.changed = "", 0.0
        named = {each: getattr(values, each) for each in _READ}
        self._names: dict[str, Any] = {
            **{f"v_{name}": UNSET for name in program.names},
            **{f"a_{name}": {} for name in program.arrays},
            **{f"v_{name}": value for name, value in {**_PLAIN, **_COUNTS}.items()},
            **named,
            **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "sin", "cos", "atan2")},
            "time": time.time,
            "NextRecord": NextRecord,
            "NextFile": NextFile,
            "at": _at,
            "put": _put,
            "r": self,
        }
        self._names["a_ENVIRON"] = {name: InputText(value) for name, value in os.environ.items()}
        words = ["awk", *words]
        self._names["a_ARGV"] = {str(at): InputText(word) for at, word in enumerate(words)}
        self._names["v_ARGC"] = float(len(words))
        for each in settings:
            if not self._set(each):
                raise Failure(f"-v needs NAME=VALUE, not {each!r}")
        exec(program.code, self._names)

    def _set(self, setting: str) -> bool:
        found = _SETTING.fullmatch(setting)
        if found:
            self._names[f"v_{check_name(found[1])}"] = InputText(unescaped(found[2]))
        return found is not None

    def run(self) -> int:
        """Runs the program; returns its exit status."""
        try:
            try:
                self._names["begin"]()
                if self._program.reads:
                    self._run_rules()
            except _End:
                pass
            self._names["end"]()
        except _End:
            pass
        finally:
            for name in [*self._writers, *self._pipes]:
                self.close(name)
            self._write_out()
        return self._status

    def _run_rules(self) -> None:
        rules = self._names["rules"]
        for line in self._main:
            self._begin(line)
            try:
                rules()
            except NextRecord:
                pass
            except NextFile:
                self._readers["\0main"] = iter(())

    def _write_out(self) -> None:
        write("".join(self._out))
        self._out.clear()

    # -- records

    def _records(self) -> Iterator[str]:
        """Yields the records of all files; the names of files may change in between."""
        at, is_read = 1, False
        while at < num(self._names["v_ARGC"]) or not is_read:
            name = str(self._names["a_ARGV"].get(str(at), ""))
            is_last = at >= num(self._names["v_ARGC"])
            at += 1
            if is_last:
                name, is_read = "-", True
            elif not name or self._set(name):
                continue
            is_read = True
            try:
                content = text_of("-" if name == "/dev/stdin" else name)
            except OSError as problem:
                sys.stderr.write(f"awk: cannot open {name} ({problem.strerror})\n")
                self._status = 2
                continue
            self._names |= {"v_FNR": 0.0, "v_FILENAME": InputText("" if is_last else name)}
            self._readers["\0main"] = self._counted(self._split(content))
            while (line := next(self._readers["\0main"], None)) is not None:
                yield line

    def _counted(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self._names["v_NR"] = num(self._names["v_NR"]) + 1.0
            self._names["v_FNR"] = num(self._names["v_FNR"]) + 1.0
            yield line

    def _split(self, whole: str) -> Iterator[str]:
        end = self.text(self._names["v_RS"])
        if end == "":
            whole = whole.strip("\n")
            return iter(re.split(r"\n{2,}", whole) if whole else [])
        parts = whole.split(end) if len(end) == 1 else _pieces(whole, end)
        if parts and not parts[-1]:
            parts.pop()
        return iter(parts)

    def _begin(self, line: str) -> None:
        self._line, self._is_split, self._is_joined = InputText(line), False, True

    def exit(self, status: float | None) -> None:
        """Ends the program."""
        if status is not None:
            self._status = int(status) & 0xFF
        raise _End

    # -- fields

    def _parts(self) -> list[str]:
        if not self._is_split:
            separator = self.text(self._names["v_FS"])
            is_pattern = len(separator) > 1
            if self._names["v_RS"] == "" and separator != " ":
                separator, is_pattern = (
                    f"({separator if is_pattern else re.escape(separator)})|\n",
                    True,
                )
            self._fields = values.split(self._line, separator, is_pattern=is_pattern)
            self._is_split = True
        return self._fields

    def field(self, at: float) -> Value:
        """Returns the record, for 0, or a field."""
        if at == 0:
            if not self._is_joined:
                self._line = InputText(self.text(self._names["v_OFS"]).join(self._fields))
                self._is_joined = True
            return self._line
        if at < 0:
            raise Failure("there is no field with a number below 0")
        fields = self._parts()
        return InputText(fields[int(at) - 1]) if at <= len(fields) else UNSET

    def set_field(self, at: float, value: Value) -> Value:
        """Sets the record, for 0, or a field."""
        if at == 0:
            self._begin(self.text(value))
            return value
        if at < 0:
            raise Failure("there is no field with a number below 0")
        fields = self._parts()
        fields += [""] * (int(at) - len(fields))
        fields[int(at) - 1] = self.text(value)
        self._is_joined = False
        return value

    def count(self) -> float:
        """Returns the number of fields."""
        return float(len(self._parts()))

    def set_count(self, value: Value) -> float:
        """Sets the number of fields."""
        fields, count = self._parts(), int(num(value))
        self._fields = fields[:count] + [""] * (count - len(fields))
        self._is_joined = False
        return float(count)

    def set_name(self, name: str, value: Value) -> Value:
        """Sets the separator of fields or records; the record that is read keeps its fields."""
        self._parts()
        self._names[f"v_{name}"] = value
        return value

    # -- values

    def text(self, value: Value) -> str:
        """Returns a value as text."""
        if type(value) is not float:
            found: str = value
            return found
        return values.text(value, self._names["v_CONVFMT"])

    def shown(self, value: Value) -> str:
        """Returns a value as `print` writes it."""
        if type(value) is not float:
            found: str = value
            return found
        return values.text(value, self._names["v_OFMT"])

    # -- output

    def line_of(self, *texts: str) -> str:
        """Returns a line of `print`."""
        return self.text(self._names["v_OFS"]).join(texts) + self.text(self._names["v_ORS"])

    def print(self, value: Value) -> None:
        """Prints one value."""
        self._out += (self.shown(value), self.text(self._names["v_ORS"]))

    def write(self, text: str, kind: str = "", name: str = "") -> None:
        """Writes a text to the output, a file or a command."""
        if not kind or name in ("/dev/stdout", "-"):
            self._out.append(text)
        elif name == "/dev/stderr":
            sys.stderr.write(text)
        elif kind == "|":
            self._pipes.setdefault(name, []).append(text)
        else:
            if name not in self._writers:
                mode = "w" if kind == ">" else "a"
                self._writers[name] = Path(name).open(  # noqa: SIM115 - until `close`
                    mode, encoding="utf-8", errors="surrogateescape", newline=""
                )
            self._writers[name].write(text)

    def close(self, name: Value) -> float:
        """Ends a file or a command."""
        name, status = self.text(name), -1.0
        if (file := self._writers.pop(name, None)) is not None:
            file.close()
            status = 0.0
        if self._readers.pop(name, None) is not None:
            status = 0.0
        if (texts := self._pipes.pop(name, None)) is not None:
            output, status = self._run(name, "".join(texts))
            self._out.append(output)
        return status

    def _run(self, command: str, text: str = "") -> tuple[str, float]:
        """Runs a command; returns its output and its status."""
        self.fflush()
        done = subprocess.run(
            command, shell=True, input=os.fsencode(text), capture_output=True, check=False
        )
        sys.stderr.write(os.fsdecode(done.stderr))
        return os.fsdecode(done.stdout), float(done.returncode)

    def system(self, command: Value) -> float:
        """Runs a command."""
        output, status = self._run(self.text(command))
        self._out.append(output)
        return status

    def fflush(self, name: Value = UNSET) -> float:
        """Writes the text that waits in memory to its files and commands."""
        for file in self._writers.values():
            file.flush()
        return 0.0

    # -- input

    def command(self, text: str) -> str:
        """Returns the name by which the output of a command is read."""
        if text not in self._readers:
            self._readers[text] = self._counted(self._split(self._run(text)[0]))
        return text

    def file(self, name: str) -> str:
        """Returns the name by which a file is read."""
        if name not in self._readers:
            if name in self._writers:
                self._writers[name].flush()
            try:
                content = text_of("-" if name == "/dev/stdin" else name)
            except OSError:
                return ""
            self._readers[name] = self._split(content)
        return name

    def getline(self, name: str | None) -> InputText | int | None:
        """Returns the next line of a file or a command; None at the end, -1 without one."""
        lines = self._main if name is None else self._readers.get(name)
        if lines is None:
            return -1
        line = next(lines, None)
        return None if line is None else InputText(line)

    def get(self, name: str | None) -> float:
        """Makes the next line the record; returns the result of `getline`, as in `outcome`."""
        line = self.getline(name)
        if isinstance(line, str):
            self._begin(line)
        return self.outcome(line)

    def outcome(self, line: InputText | int | None) -> float:
        """Returns the result of `getline`: 1 for a line, 0 at the end, -1 without a file."""
        return 1.0 if isinstance(line, str) else 0.0 if line is None else -1.0


def _pieces(whole: str, end: str) -> list[str]:
    parts, at = [], 0
    for found in values.pattern(end).finditer(whole):
        if found.end() > found.start():
            parts.append(whole[at : found.start()])
            at = found.end()
    return [*parts, whole[at:]]
