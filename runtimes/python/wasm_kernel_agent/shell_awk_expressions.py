"""Expressions of `awk`, which become Python's expressions.

They compute with the names of `shell_awk_values` and of the runtime `r`. A variable `x` is `v_x`,
an array `a_x`.
"""

from __future__ import annotations

import re

from wasm_kernel_agent.shell_awk_tokens import (
    BUILT_IN,
    KEYWORDS,
    Made,
    computed,
    joined,
    pattern_of,
    source_of,
    stepped,
    tokens_of,
    unescaped,
)
from wasm_kernel_agent.shell_awk_values import Failure

_ARRAYS_OF = {"split": 1, "asort": 0, "asorti": 0, "match": 2}  # the place of an array
_INLINE = {
    **{name: f"calculated({name}, {{0.number}})" for name in ("sqrt", "exp", "log", "sin", "cos")},
    "atan2": "calculated(atan2, {0.number}, {1.number})",
    "index": "float({0.text}.find({1.text}) + 1)",
    "int": "whole({0.number})",
    "rand": "r.random()",
    "systime": "float(int(time()))",
    "tolower": "{0.text}.lower()",
    "toupper": "{0.text}.upper()",
}


class Expressions:
    """The words of a program, from which expressions are read."""

    def __init__(self, source: str) -> None:
        self._tokens, self._at = [*tokens_of(source)], 0
        self.arrays: set[str] = set()
        self.names: set[str] = set()
        self._given: dict[tuple[str, int], set[str]] = {}
        self._functions: dict[str, list[str]] = {}
        self._called: dict[str, int] = {}  # with the most values that a call gives
        self._function = ""
        self._is_redirect = False

    # -- tokens

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _word(self) -> str:
        kind, word = self._tokens[self._at]
        return word if kind in ("sign", "name", "newline") else ""

    def _take(self, *words: str) -> str:
        if self._word in words:
            self._at += 1
            return self._tokens[self._at - 1][1]
        return ""

    def _need(self, word: str) -> None:
        if not self._take(word):
            found = self._tokens[self._at][1].replace("\n", "the end of a line") or "the end"
            raise Failure(f"syntax error: {word} is expected before {found}")

    def _skip_lines(self) -> None:
        while self._take("\n"):
            pass

    def _skip_ends(self) -> bool:
        while self._take("\n", ";"):
            pass
        return True

    # -- expressions, from the loosest operator to the tightest

    def _parenthesized(self) -> Made:
        self._need("(")
        found = self._values(")")
        if len(found) != 1:
            raise Failure("syntax error: one value is expected between ( and )")
        return found[0]

    def _expression(self) -> Made:
        return self._assigned(self._choice())

    def _assigned(self, found: Made) -> Made:
        """Returns the assignment to `found`, if one follows."""
        sign = self._take("=", "+=", "-=", "*=", "/=", "%=", "^=", "**=") if found.target else ""
        if not sign:
            return found
        self._skip_lines()
        other = self._expression()
        if sign != "=":
            other = computed(sign[:-1].replace("**", "^"), found.old, other)
        return Made(f"{found.target}{other.value})", other.kind if other.kind in "ns" else "")

    def _choice(self) -> Made:
        test = self._or()
        if not self._take("?"):
            return test
        self._skip_lines()
        one = self._expression()
        self._skip_lines()
        self._need(":")
        self._skip_lines()
        other = self._expression()
        kind = one.kind if one.kind == other.kind and one.kind in "ns" else ""
        return Made(f"({one.value} if {test.condition} else {other.value})", kind)

    def _or(self) -> Made:
        found = self._and()
        while self._take("||"):
            self._skip_lines()
            found = Made(f"({found.condition} or {self._assigned(self._and()).condition})", "b")
        return found

    def _and(self) -> Made:
        found = self._in()
        while self._take("&&"):
            self._skip_lines()
            found = Made(f"({found.condition} and {self._assigned(self._in()).condition})", "b")
        return found

    def _in(self) -> Made:
        found = self._match()
        while self._take("in"):
            array = self._array(self._tokens[self._at][1])
            self._at += 1
            found = Made(f"({found.text} in {array})", "b")
        return found

    def _match(self) -> Made:
        found = self._comparison()
        while sign := self._take("~", "!~"):
            other = self._comparison()
            no = "not " if sign == "!~" else ""
            found = Made(f"({no}{pattern_of(other)}.search({found.text}))", "b")
        return found

    def _comparison(self) -> Made:
        found = self._concatenation()
        signs = ["<", "<=", "==", "!=", ">=", *([] if self._is_redirect else [">"])]
        if sign := self._take(*signs):
            other = self._concatenation()
            found = Made(f"(order({found.value}, {other.value}) {sign} 0)", "b")
        return found

    def _concatenation(self, may_read: bool = True) -> Made:
        found = self._sum()
        while self._begins_value() and self._word != "in":
            found = Made(f"({found.text} + {self._sum().text})", "s")
        while may_read and self._word == "|" and self._tokens[self._at + 1][1] == "getline":
            self._at += 1
            self._need("getline")
            found = self._getline(f"r.command({found.text})")
        return found

    def _begins_value(self) -> bool:
        if self._kind in ("number", "text", "pattern", "call"):
            return True
        if self._kind == "name":
            return self._word not in KEYWORDS
        return self._word in ("$", "(", "++", "--")

    def _sum(self) -> Made:
        found = self._product()
        while sign := self._take("+", "-"):
            found = computed(sign, found, self._product())
        return found

    def _product(self) -> Made:
        found = self._unary()
        while sign := self._take("*", "/", "%"):
            found = computed(sign, found, self._unary())
        return found

    def _unary(self) -> Made:
        if self._take("!"):
            return Made(f"(not {self._assigned(self._unary()).condition})", "b")
        if sign := self._take("-", "+"):
            return Made(f"({sign}{self._unary().number})", "n")
        return self._power()

    def _power(self) -> Made:
        found = self._postfix()
        if self._take("^", "**"):
            sign = self._take("-", "+", "!")
            other = self._power()
            if sign:
                other = Made(f"({'not ' if sign == '!' else sign}{other.number})", "n")
            return computed("^", found, other)
        return found

    def _postfix(self) -> Made:
        if sign := self._take("++", "--"):
            return stepped(self._postfix(), sign[0], is_after=False)
        found = self._primary()
        if found.target and (sign := self._take("++", "--")):
            return stepped(found, sign[0], is_after=True)
        return found

    def _primary(self) -> Made:  # noqa: PLR0911 - a line for each kind of word
        kind, word = self._tokens[self._at]
        kept = f"k{self._at}"
        if self._take("$"):
            step = self._take("++", "--")
            at = self._primary()
            at = stepped(at, step[0], is_after=False) if step else at
            target = f"r.set_field(({kept} := {at.number}), "
            return Made(f"r.field({at.number})", "", target, again=f"r.field({kept})")
        if self._word == "(":
            return self._group()
        self._at += 1
        if kind == "number":
            base = 16 if word[:2] in ("0x", "0X") else 8 if re.fullmatch("0[0-7]+", word) else 0
            return Made(repr(float(int(word, base) if base else word)), "n")
        if kind == "text":
            return Made(repr(unescaped(word[1:-1])), "s")
        if kind == "pattern":
            source = word.replace("\\/", "/")
            return Made(f"(pattern({source!r}).search(r.field(0)))", "b", pattern=source)
        if kind == "call":
            return self._call(word)
        if word == "getline":
            return self._getline("")
        if word == "length":
            return Made("float(len(r.field(0)))", "n")
        self._at -= 1
        if kind == "name" and word not in KEYWORDS:
            return self._variable()
        raise Failure(f"syntax error near {word!r}" if word.strip() else "syntax error at an end")

    def _group(self) -> Made:
        self._need("(")
        found = self._values(")")
        if len(found) > 1:
            if self._word != "in":
                raise Failure("syntax error: a list stands for no value")
            return Made(joined(found), "s")
        return Made(f"({found[0].code})", found[0].kind)

    def _variable(self) -> Made:
        name, kept = self._tokens[self._at][1], f"k{self._at}"
        self._at += 1
        if self._take("["):
            array, key = self._array(name), self._key("]")
            target = f"put({array}, ({kept} := {key}), "
            return Made(f"at({array}, {key})", "", target, again=f"at({array}, {kept})")
        if name == "NF":
            return Made("r.count()", "n", "r.set_count(")
        self._note(name)
        own = self._function and name in self._functions[self._function]
        target = f"r.set_name({name!r}, " if name in ("FS", "RS") and not own else f"(v_{name} := "
        return Made(f"v_{name}", "", target, name)

    def _note(self, name: str) -> None:
        if not (self._function and name in self._functions[self._function]):
            self.names.add(name)

    def _array(self, name: str) -> str:
        if self._function and name in self._functions[self._function]:
            place = self._functions[self._function].index(name)
            self.arrays.add(f"{self._function} {place}")
        else:
            self.arrays.add(name)
        return f"a_{name}"

    def _key(self, end: str) -> str:
        return joined(self._values(end))

    def _getline(self, command: str) -> Made:
        made, source = None, command
        if self._word == "$" or (self._kind == "name" and self._word not in KEYWORDS):
            made = self._primary()
        if not command and self._take("<"):
            source = f"r.file({self._primary().text})"
        if made is None:
            return Made(f"r.get({source or None})", "n")
        # the place is found first, as in `a[n++]`, and keeps its value if there is no line
        read = f"isinstance(line := r.getline({source or None}), str)"
        taken = f"{made.target}line if {read} else {made.old.value})"
        return Made(f"({taken}, r.outcome(line))[1]", "n")

    def _call(self, name: str) -> Made:
        self._need("(")
        self._skip_lines()
        found = self._values(")")
        if name in BUILT_IN:
            return self._built_in(name, found)
        self._called[name] = max(len(found), self._called.get(name, 0))
        codes = []
        for place, each in enumerate(found):
            if each.name:
                self._given.setdefault((name, place), set()).add(
                    f"{self._function} {self._functions[self._function].index(each.name)}"
                    if self._function and each.name in self._functions[self._function]
                    else each.name
                )
                codes.append(f"\1{name} {place} {each.name}\1")
            else:
                codes.append(each.value)
        return Made(f"f_{name}({', '.join(codes)})")

    def _built_in(self, name: str, found: list[Made]) -> Made:
        kind, least, most = BUILT_IN[name]
        if not least <= len(found) <= most:
            raise Failure(f"the function {name} does not take {len(found)} values")
        if name == "length":
            whole = f"float(len({found[0].text if found else 'r.field(0)'}))"
            is_name = bool(found and found[0].name)
            return Made(f"\2{self._function} {found[0].name}\2" if is_name else whole, "n")
        if name in ("sub", "gsub"):
            changed = found[2] if len(found) > 2 else Made("r.field(0)", "", "r.set_field(0.0, ")
            value, target = changed.once
            args = f"{source_of(found[0])}, {found[1].text}, {value.text}, is_all={name == 'gsub'}"
            if not target:
                return Made(f"float(replaced({args})[1])", "n")
            return Made(f"(r.replace({args}) and {target}r.result), r.changed)[1]", "n")
        if name in _INLINE:
            return Made(_INLINE[name].format(*found), kind)
        if name == "sprintf":
            rest = "".join(f"{each.value}, " for each in found[1:])
            return Made(f"formatted({found[0].text}, ({rest}))", kind)
        codes = []
        for place, each in enumerate(found):
            if _ARRAYS_OF.get(name) == place or (name.startswith("asort") and place == 1):
                codes.append(self._array(each.name))
            elif (name in ("match", "split") and place == (1 if name == "match" else 2)) or (
                name == "gensub" and place == 0
            ):
                is_pattern = each.pattern is not None
                codes.append(source_of(each) + (", True" if is_pattern and name == "split" else ""))
            else:
                codes.append(each.value)
        return Made(f"r.{name}({', '.join(codes)})", kind)

    def _values(self, end: str = "") -> list[Made]:
        found: list[Made] = []
        before = self._is_redirect
        self._is_redirect = before and not end
        while not (end and self._take(end)):
            found.append(self._expression())
            if not self._take(","):
                if end:
                    self._need(end)
                break
            self._skip_lines()
        self._is_redirect = before
        return found
