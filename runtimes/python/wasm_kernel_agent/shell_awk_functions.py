"""The functions that programs of `awk` call."""

from __future__ import annotations

import functools
import math
import re
import time
from datetime import UTC, datetime

from wasm_kernel_agent import shell_awk_values as values
from wasm_kernel_agent.shell_awk_records import Records
from wasm_kernel_agent.shell_awk_values import UNSET, InputText, Value, num
from wasm_kernel_agent.shell_basics import formatted_time

_FAR = 1e15  # a position beyond the end of any text
_DATE = "%a %b %e %H:%M:%S UTC %Y"


class Runtime(Records):
    """A program that runs."""

    def split(
        self,
        value: Value,
        array: dict[str, Value],
        separator: str | None = None,
        is_pattern: bool = False,
    ) -> float:
        """Fills an array with the parts of a text."""
        end = self.text(self._names["v_FS"]) if separator is None else separator
        parts = values.split(self.text(value), end, is_pattern=is_pattern)
        return self._numbered([*map(InputText, parts)], array)

    def match(self, value: Value, source: str, array: dict[str, Value] | None = None) -> float:
        """Finds a pattern; fills an array with its groups."""
        found = values.pattern(source).search(self.text(value))
        start, length = (found.start() + 1, len(found[0])) if found else (0, -1)
        self._names |= {"v_RSTART": float(start), "v_RLENGTH": float(length)}
        if array is not None:
            array.clear()
            groups = [found[0], *found.groups()] if found else []
            array.update(
                (str(at), InputText(part)) for at, part in enumerate(groups) if part is not None
            )
        return float(start)

    def replace(self, source: str, replacement: str, target: str, *, is_all: bool) -> bool:
        """Replaces matches in `result`; `changed` counts them."""
        self.result, count = values.replaced(source, replacement, target, is_all=is_all)
        self.changed = float(count)
        return count > 0

    def gensub(self, source: str, replacement: Value, how: Value, target: Value = None) -> str:
        """Returns a text in which a match, or all, are replaced, also by groups."""
        place = self.text(how)
        wanted = 0 if place[:1] in ("g", "G") else max(1, int(num(how)))
        parts = re.findall(r"\\[0-9]|\\[\s\S]|[\s\S]", self.text(replacement))
        seen = 0

        def one(found: re.Match[str]) -> str:
            nonlocal seen
            seen += 1
            if wanted and seen != wanted:
                return found[0]
            return "".join(
                found[0] if part in ("&", "\\0")
                else (found[int(part[1])] or "" if int(part[1]) <= found.re.groups else "")
                if len(part) == 2 and part[1].isdigit()
                else part[1:] if len(part) == 2 else part
                for part in parts
            )  # fmt: skip

        return values.pattern(source).sub(
            one, self.field(0) if target is None else self.text(target)
        )

    def substr(self, value: Value, start: Value, length: Value = None) -> str:
        """Returns a part of a text."""
        whole, begin, size = self.text(value), num(start), _FAR if length is None else num(length)
        if math.isnan(begin) or math.isnan(size):
            return ""
        first, most = math.trunc(max(1, min(begin, _FAR))), math.trunc(max(0, min(size, _FAR)))
        return whole[first - 1 : first - 1 + most]

    def srand(self, seed: Value = None) -> float:
        """Sets the seed of random numbers; returns the one before."""
        before, self._seed = self._seed, int(time.time()) if seed is None else num(seed)
        self._random.seed(self._seed)
        return before

    def mktime(self, value: Value) -> float:
        """Returns the seconds of a date such as `2024 01 31 12 00 00`."""
        try:
            year, month, *rest = [int(part) for part in self.text(value).split()[:6]]
            begin = datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1, tzinfo=UTC)
            day, hour, minute, second = [*rest, 0, 0, 0][:4]
        except ValueError:
            return -1.0
        return begin.timestamp() + (day - 1) * 86400 + hour * 3600 + minute * 60 + second

    def strftime(self, form: Value = _DATE, moment: Value = None, utc: Value = UNSET) -> str:
        """Returns a time as text, in UTC."""
        seconds = time.time() if moment is None else num(moment)
        return formatted_time(datetime.fromtimestamp(math.floor(seconds), UTC), self.text(form))

    def strtonum(self, value: Value) -> float:
        """Returns the number that a text stands for, also in base 8 or 16."""
        found = re.match(r"\s*(-?)0([xX][0-9a-fA-F]+|[0-7]+)\s*$", self.text(value))
        if found is None:
            return num(value)
        size = int(found[2][1:], 16) if found[2][0] in "xX" else int(found[2], 8)
        return float(-size if found[1] else size)

    def asort(self, array: dict[str, Value], target: dict[str, Value] | None = None) -> float:
        """Sorts the values of an array."""
        found = sorted(array.values(), key=functools.cmp_to_key(values.order))
        return self._numbered(found, array if target is None else target)

    def asorti(self, array: dict[str, Value], target: dict[str, Value] | None = None) -> float:
        """Sorts the keys of an array."""
        return self._numbered(sorted(array), array if target is None else target)

    def _numbered(self, found: list[Value], target: dict[str, Value]) -> float:
        target.clear()
        target.update((str(at), value) for at, value in enumerate(found, 1))
        return float(len(found))
