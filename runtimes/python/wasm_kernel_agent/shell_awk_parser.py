"""The language `awk`: reads a program, and writes it as Python's code.

Expressions become Python's expressions, which compute with the names of `shell_awk_values` and of
the runtime `r`. A variable `x` is `v_x`, an array `a_x`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from wasm_kernel_agent.shell_awk_expressions import Expressions
from wasm_kernel_agent.shell_awk_tokens import Made
from wasm_kernel_agent.shell_awk_values import Failure


class Program(Expressions):
    """A program as Python's code: its functions, its rules, and the code before and after them."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._loops: list[list[str]] = []
        self.ranges = 0
        parts: dict[str, list[str]] = {"BEGIN": [], "END": [], "": []}
        self._bodies: list[str] = []
        while self._skip_ends() and self._kind != "end":
            self._item(parts)
        for name, count in self._called.items():
            if name not in self._functions:
                raise Failure(f"the function {name} is not known here")
            if count > len(self._functions[name]):
                raise Failure(f"the function {name} is called with more values than it takes")
        self._spread_arrays()
        self.has_rules, self.reads = bool(parts[""]), bool(parts[""] or parts["END"])
        try:
            self.code = compile(self._whole(parts), "<awk>", "exec")
        except SyntaxError as problem:  # such as `break` outside of a loop
            raise Failure(f"syntax error: {problem.msg}") from None

    # -- items

    def _item(self, parts: dict[str, list[str]]) -> None:
        if self._take("function", "func"):
            self._define()
            return
        kind = self._take("BEGIN", "END")
        if kind:
            parts[kind] += self._block()
            return
        begin = end = None
        if self._word != "{":
            begin = self._expression()
            if self._take(","):
                self._skip_lines()
                end = self._expression()
        body = self._block() if self._word == "{" else ["r.print(r.field(0))"]
        if begin is None:
            parts[""] += body
        elif end is None:
            parts[""] += [f"if {begin.condition}:", *_indented(body)]
        else:
            number, self.ranges = self.ranges, self.ranges + 1
            ends = f"    r.ranges[{number}] = not {end.condition}"
            parts[""] += [f"if r.ranges[{number}] or {begin.condition}:", ends, *_indented(body)]

    def _define(self) -> None:
        name, self._at = self._tokens[self._at][1], self._at + 1
        self._need("(")
        given = []
        while not self._take(")"):
            given.append(self._tokens[self._at][1])
            self._at += 1
            self._take(",")
            self._skip_lines()
        self._functions[name], self._function = given, name
        self._skip_lines()
        body = self._block()
        self._function = ""
        self._bodies.append(f"\0{name}\0" + "\n".join(_indented([*body, "return UNSET"])))

    def _block(self) -> list[str]:
        self._need("{")
        body: list[str] = []
        while self._skip_ends() and not self._take("}"):
            if self._kind == "end":
                raise Failure("syntax error: } is expected before the end")
            body += self._statement()
        return body or ["pass"]

    # -- statements

    def _statement(self) -> list[str]:
        if self._word == "{":
            return self._block()
        if self._take(";"):
            return ["pass"]
        for word, make in (
            ("if", self._if),
            ("while", self._while),
            ("do", self._do),
            ("for", self._for),
        ):
            if self._take(word):
                return make()
        body = self._simple()
        if self._word != "}":
            if self._word not in (";", "\n"):
                self._need("\n")
            self._at += 1
        return body

    def _body(self, *after: str) -> list[str]:
        """Returns the code of a loop's body, in which `continue` first runs `after`."""
        self._loops.append([*after])
        body = self._branch()
        self._loops.pop()
        return body

    def _branch(self) -> list[str]:
        self._skip_lines()
        return _indented(self._statement())

    def _if(self) -> list[str]:
        test = self._parenthesized()
        code = [f"if {test.condition}:", *self._branch()]
        at = self._at
        self._skip_ends()
        if not self._take("else"):
            self._at = at
            return code
        return [*code, "else:", *self._branch()]

    def _while(self) -> list[str]:
        test = self._parenthesized()
        if self._take(";"):
            return [f"while {test.condition}:", "    pass"]
        return [f"while {test.condition}:", *self._body()]

    def _do(self) -> list[str]:
        begin = self._at
        self._body()
        self._skip_ends()
        self._need("while")
        ends = f"if not {self._parenthesized().condition}: break"
        after, self._at = self._at, begin
        body = self._body(ends)
        self._at = after
        return ["while True:", *body, f"    {ends}"]

    def _for(self) -> list[str]:
        self._need("(")
        at = self._at
        if (
            self._kind == "name"
            and self._tokens[at + 1][1] == "in"
            and self._tokens[at + 3][1] == ")"
        ):
            name, array = self._variable(), self._tokens[at + 2][1]
            self._at = at + 4
            return [f"for {name.code} in [*{self._array(array)}]:", *self._body()]
        begin = [] if self._word == ";" else self._simple()
        self._need(";")
        self._skip_lines()
        test = "True" if self._word == ";" else self._expression().condition
        self._need(";")
        self._skip_lines()
        step = [] if self._word == ")" else self._simple()
        self._need(")")
        if self._take(";"):
            return [*begin, f"while {test}:", *_indented(step or ["pass"])]
        return [*begin, f"while {test}:", *self._body(*step), *_indented(step)]

    def _simple(self) -> list[str]:
        for word, make in (
            ("print", lambda: self._output("print")),
            ("printf", lambda: self._output("printf")),
            ("next", lambda: ["raise NextRecord" if self._function else "return"]),
            ("nextfile", lambda: ["raise NextFile"]),
            ("exit", lambda: [f"r.exit({self._optional('None', 'number')})"]),
            ("return", lambda: [f"return {self._optional('UNSET', 'value')}"]),
            ("delete", self._delete),
            ("break", lambda: ["break"]),
            ("continue", lambda: [*(self._loops[-1] if self._loops else []), "continue"]),
        ):
            if self._take(word):
                make_code: Callable[[], list[str]] = make
                return make_code()
        return [self._expression().code]

    def _optional(self, otherwise: str, form: str) -> str:
        if self._word in (";", "\n", "}"):
            return otherwise
        code: str = getattr(self._expression(), form)
        return code

    def _delete(self) -> list[str]:
        array = self._array(self._tokens[self._at][1])
        self._at += 1
        if not self._take("["):
            return [f"{array}.clear()"]
        return [f"{array}.pop({self._key(']')}, None)"]

    def _output(self, name: str) -> list[str]:
        before, self._is_redirect = self._is_redirect, True
        values = []
        if self._word not in (";", "\n", "}", ">", ">>", "|"):
            values = self._list()
        self._is_redirect = before
        target = ""
        if sign := self._take(">", ">>", "|"):
            target = f", {sign!r}, {self._concatenation(False).text}"
        if name == "printf":
            if not values:
                raise Failure("syntax error: printf needs a format")
            rest = "".join(f"{each.value}, " for each in values[1:])
            return [f"r.write(formatted({values[0].text}, ({rest})){target})"]
        if target or len(values) != 1:
            shown = ", ".join(f"r.shown({each.value})" for each in values) or "r.field(0)"
            return [f"r.write(r.line_of({shown}){target})"]
        return [f"r.print({values[0].value})"]

    def _list(self) -> list[Made]:
        """Returns the values of `print`, which may stand in parentheses."""
        at, depth = self._at, 0
        while self._word == "(" or depth:
            depth += {"(": 1, ")": -1}.get(self._word, 0)
            if self._kind == "end":
                raise Failure("syntax error: ) is expected before the end")
            self._at += 1
            if not depth:
                break
        is_whole = self._at > at and self._word in (";", "\n", "}", ">", ">>", "|")
        self._at = at
        if not is_whole:
            return self._values()
        self._need("(")
        return self._values(")")

    # -- the whole program

    def _spread_arrays(self) -> None:
        """Finds the names that are arrays as functions take them for arrays."""
        grown = True
        while grown:
            before = len(self.arrays)
            for (name, place), given in self._given.items():
                if f"{name} {place}" in self.arrays:
                    self.arrays |= given
            grown = len(self.arrays) > before

    def _given_code(self, found: re.Match[str]) -> str:
        function, place, name = found[1].split()
        return ("a_" if f"{function} {place}" in self.arrays else "v_") + name

    def _length_code(self, found: re.Match[str]) -> str:
        function, _, name = found[1].rpartition(" ")
        given = self._functions.get(function, [])
        known = f"{function} {given.index(name)}" if name in given else name
        return f"float(len(a_{name}))" if known in self.arrays else f"float(len(r.text(v_{name})))"

    def _whole(self, parts: dict[str, list[str]]) -> str:
        names = sorted(f"v_{name}" for name in self.names - self.arrays)
        shared = f"    global {', '.join(names)}" if names else "    pass"
        lines = []
        for body in self._bodies:
            _, name, code = body.split("\0")
            given = [
                f"a_{each}=None" if f"{name} {place}" in self.arrays else f"v_{each}=UNSET"
                for place, each in enumerate(self._functions[name])
            ]
            own = [each.split("=")[0] for each in given]
            others = [each for each in names if each not in own]
            made = [f"    if {each} is None: {each} = {{}}" for each in own if each[0] == "a"]
            head = f"    global {', '.join(others)}" if others else "    pass"
            lines += [f"def f_{name}({', '.join(given)}):", head, *made, code]
        for title, name in (("begin", "BEGIN"), ("rules", ""), ("end", "END")):
            lines += [f"def {title}():", shared, *_indented(parts[name])]
        code = "\n".join(lines)
        code = re.sub("\1([^\1]*)\1", self._given_code, code)
        return re.sub("\2([^\2]*)\2", self._length_code, code)


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for each in lines for line in each.split("\n")]
