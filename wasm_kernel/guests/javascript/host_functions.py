"""`AgentCalls`: the host's answers to the agent's calls during a turn.

The arguments are hostile, as is the agent once a cell has run: each is read once, as one type.
Nothing here raises for the values that they hold.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from wasm_kernel.guests.base import GuestSetup
from wasm_kernel.guests.javascript.modules import ModuleLoader, ModuleProblem
from wasm_kernel.guests.javascript.quickjs import OK, PENDING, QuickJs
from wasm_kernel.wasi_files.access import text
from wasm_kernel.wasi_files.content import BOTH_TIMES
from wasm_kernel.wasi_files.path_walk import Follow

FAILED = 0xFFFFFFFF  # -1: the guest throws an error of its own
RUNS_CODE = frozenset({"source"})
"""The functions that may run a cell's code."""
_PIECE_BYTES = 1024 * 1024
_WORDS_MOST = 65_536  # bytes of names, and of file calls with their paths
_REJECTIONS_MOST = 100  # promises that are kept for the report at the end of a cell
_FILE_MOST = 64 * 1024 * 1024  # bytes of a file that are read at once
_RANDOM_MOST = 65_536
_DECODED_MOST = 16 * 1024 * 1024  # bytes that are decoded at once
_FUNCTION = b"function (exports, require, module, __filename, __dirname) {%b\n}"
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
_MESSAGES = {errno.EILSEQ: "not a name"}  # a lone surrogate
_ENCODINGS = frozenset({"utf-8", "utf-16-le", "utf-16-be", "cp1252", "latin-1"})
_ESCAPED = "surrogateescape"


class AgentCalls:
    """Answers the agent of one guest. Only the guest's thread uses it.

    The loader gives access to files, and says when long work must end.
    """

    def __init__(
        self,
        engine: QuickJs,
        setup: GuestSetup,
        loader: ModuleLoader,
        random: Callable[[int], bytes],
    ) -> None:
        self._engine, self._loader, self._draw = engine, loader, random
        self._send, self._streams = setup.answer, setup.streams
        self._rejected: dict[int, int] = {}

    def answer(self, name: str, handles: Sequence[int]) -> int:
        """Returns a handle of the answer to a call, or `FAILED`."""
        answer = FUNCTIONS.get(name)
        return FAILED if answer is None else answer(self, handles)

    def _texts(self, handles: Sequence[int]) -> list[str]:
        """Returns short texts; an empty one for a value that is not a text, or too long."""
        found = [self._engine.text(handle, _WORDS_MOST) for handle in handles]
        return [text or "" for text in found]

    def _text(self, text: str) -> int:
        return self._engine.new_text(text.encode("utf-8", "replace")) or FAILED

    def _frame(self, handles: Sequence[int]) -> int:
        """Returns the answer to a frame: a text, or an array of it and the bytes behind it."""
        engine = self._engine
        parts = [engine.raw_text(handle) for handle in handles[:1]]
        parts += [engine.data(handle) for handle in handles[1:2]]
        frame = [part for part in parts if part is not None]
        if len(frame) < max(1, len(handles)):
            return self._text('{"refused": "it is not text, or too large"}')
        text, _, raw = self._send(b"\0".join(frame)).partition(b"\0")
        made = engine.new_text(text) or FAILED
        return engine.new_array(made, engine.new_data(raw)) if raw else made

    def _print(self, name: str, handles: Sequence[int]) -> int:
        """Prints a text to a stream, in pieces, as long as the stream wants more."""
        data = (self._engine.raw_text(handles[0]) if handles else None) or b""
        for start in range(0, len(data), _PIECE_BYTES):
            if not self._streams.wants(name) or (start and self._loader.should_stop()):
                break
            self._streams.feed(name, data[start : start + _PIECE_BYTES])
        return self._engine.new_undefined()

    def _random(self, handles: Sequence[int]) -> int:
        (count,) = self._texts(handles)
        return self._engine.new_data(self._draw(min(int(count), _RANDOM_MOST))) or FAILED

    def _encode(self, handles: Sequence[int]) -> int:
        """Returns a text as UTF-8, or in the form that `encodeAs` in the guest has asked for."""
        text = self._engine.raw_text(handles[0])
        if text is not None and len(handles) > 1:
            if len(text) > _DECODED_MOST:
                return FAILED
            try:
                text = _encoded(text, *self._texts(handles[1:2]))
            except ValueError:
                return self._engine.new_undefined()
        return FAILED if text is None else self._engine.new_data(text) or FAILED

    def _decode(self, handles: Sequence[int]) -> int:
        """Returns the text of bytes in an encoding; undefined if they are invalid in it."""
        data = self._engine.data(handles[0])
        label, how = self._texts(handles[1:])
        is_escaped = how == "escaped"
        most = _DECODED_MOST // 8 if is_escaped else _DECODED_MOST  # six letters for one byte
        if data is None or len(data) > most or label not in _ENCODINGS:
            return FAILED
        try:
            if is_escaped:
                return self._text(json.dumps(data.decode(label, _ESCAPED)))
            text = data.decode(label, "strict" if how == "fatal" else "replace")
        except UnicodeDecodeError:
            return self._engine.new_undefined()
        return self._text(text)

    def _promise(self, handles: Sequence[int]) -> int:
        """Returns the state of a promise and its value; undefined while it is pending."""
        state, value = self._engine.promise(handles[0])
        if state == PENDING:
            return self._engine.new_undefined()
        return self._engine.new_array(self._text(str(state)), value)

    def _enter(self, handles: Sequence[int]) -> int:
        (self._loader.folder,) = self._texts(handles)
        return self._engine.new_undefined()

    def _resolve(self, handles: Sequence[int]) -> int:
        base, name = self._texts(handles)
        try:
            return self._text(json.dumps({"path": self._loader.resolve(base, name)}))
        except (ModuleProblem, OSError) as problem:
            return self._text(json.dumps({"problem": str(problem)}))

    def _source(self, handles: Sequence[int]) -> int:
        """Returns the function of a file that `require` runs, or a JSON file's text."""
        path, number = self._texts(handles)
        try:
            source = self._loader.script(path)
        except (ModuleProblem, OSError):
            return self._engine.new_undefined()
        if path.endswith(".json"):
            return self._engine.new_array(self._text("text"), self._engine.new_text(source))
        name = f"req[{int(number) % 10**6:06}]"
        status, value = self._engine.evaluate_function(_FUNCTION % source, name)
        return self._engine.new_array(self._text("function" if status == OK else "problem"), value)

    def _problem(self, handles: Sequence[int]) -> int:
        problem, self._loader.problem = self._loader.problem, ""
        return self._text(problem)

    # -- unhandled promises

    def note_rejection(self, promise: int, *, is_handled: bool) -> None:
        """Notes that the promise at an address is rejected and unhandled, or that it is handled."""
        if is_handled:
            self._engine.free(self._rejected.pop(promise, 0))
        elif len(self._rejected) < _REJECTIONS_MOST:
            self._rejected[promise] = self._engine.held(promise)

    def forget_rejections(self) -> None:
        """Frees the noted promises at the end of a turn, as the next may have other memory."""
        self._engine.free(self._rejections(()))

    def _rejections(self, _: Sequence[int]) -> int:
        """Returns the unhandled promises as an array, each only once."""
        found = self._engine.new_array(*self._rejected.values())
        self._rejected.clear()
        return found

    # -- files

    def _file(self, handles: Sequence[int]) -> int:
        name, words = self._texts(handles[:2])
        data = self._engine.data(handles[2]) if len(handles) > 2 else b""
        if data is None:
            return FAILED
        try:
            if not words:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            found = self._acts[name](json.loads(words), data)
        except OSError as problem:
            return self._failed(problem.errno or errno.EIO)
        except (OverflowError, ValueError):  # a number that system calls don't take
            return self._failed(errno.EINVAL)
        if isinstance(found, bytes):
            return self._engine.new_data(found) or FAILED
        return self._text(json.dumps({"value": found}))

    def _failed(self, number: int) -> int:
        message = _MESSAGES.get(number) or os.strerror(number).lower()
        told = {"code": errno.errorcode.get(number, "EIO"), "errno": -number, "message": message}
        return self._text(json.dumps(told))

    @cached_property
    def _acts(self) -> Mapping[str, Callable[[Sequence[Any], bytes], Any]]:
        files = self._loader.files()
        do, at = files.operations, files.at
        return {
            "read": lambda a, data: files.read(a[0], int(a[1]), min(int(a[2]), _FILE_MOST)),
            "write": lambda a, data: files.write(a[0], data, append=a[1], new=a[2]),
            "truncate": lambda a, data: files.truncate(a[0], int(a[1])),
            "list": lambda a, data: files.list(a[0]),
            "status": lambda a, data: _status_fields(
                do.status(at(a[0]), Follow.ALWAYS if a[1] else Follow.BEFORE_SLASH)
            ),
            "times": lambda a, data: do.set_times(
                at(a[0]), Follow.ALWAYS, int(a[1] * 1e6), int(a[2] * 1e6), BOTH_TIMES
            ),
            "make": lambda a, data: do.make_folder(at(a[0])),
            "rmdir": lambda a, data: do.remove_folder(at(a[0])),
            "remove": lambda a, data: do.remove(at(a[0])),
            "rename": lambda a, data: do.rename(at(a[0]), at(a[1])),
            "link": lambda a, data: do.link(at(a[0]), at(a[1])),
            "symlink": lambda a, data: do.make_link(text(a[0]), at(a[1])),
            "readlink": lambda a, data: do.read_link(at(a[0])),
            "space": lambda a, data: do.quota.space(),
        }


FUNCTIONS: Mapping[str, Callable[[AgentCalls, Sequence[int]], int]] = {
    "send": AgentCalls._frame,
    "print1": lambda calls, handles: calls._print("stdout", handles),
    "print2": lambda calls, handles: calls._print("stderr", handles),
    "file": AgentCalls._file,
    "random": AgentCalls._random,
    "encode": AgentCalls._encode,
    "decode": AgentCalls._decode,
    "promise": AgentCalls._promise,
    "enter": AgentCalls._enter,
    "resolve": AgentCalls._resolve,
    "source": AgentCalls._source,
    "problem": AgentCalls._problem,
    "rejections": AgentCalls._rejections,
}
"""The functions that the agent can call, by name."""


def _encoded(text: bytes, form: str) -> bytes:
    """Returns UTF-8 with one byte for each character, or the bytes that escaped JSON stands for."""
    if form == "latin-1":
        return text.decode().encode("latin-1")
    if text[:1] != b'"':  # not a string
        raise ValueError
    words: str = json.loads(text)
    try:
        return words.encode("utf-8", _ESCAPED)
    except UnicodeEncodeError:  # half of a pair of surrogates
        return words.encode("utf-8", "surrogatepass")


def _status_fields(status: os.stat_result) -> Mapping[str, Any]:
    """Returns a status with times in milliseconds, as JavaScript counts them."""
    return {
        "kind": _KINDS.get(stat.S_IFMT(status.st_mode), "other"),
        "size": status.st_size,
        "atimeMs": status.st_atime_ns / 1e6,
        "mtimeMs": status.st_mtime_ns / 1e6,
        "ctimeMs": status.st_ctime_ns / 1e6,
        "dev": status.st_dev,
        "ino": status.st_ino,
        "nlink": status.st_nlink,
    }
