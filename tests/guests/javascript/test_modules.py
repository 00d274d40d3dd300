"""Modules and packages that lie in the workspace, and built-in ones."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faces import error_of, process_of, traceback_of
from tests.guests.javascript.conftest import problem, value
from tests.peak import MB, Peak
from wasm_kernel import BaseSandbox


def lay(sandbox: BaseSandbox, files: dict[str, str | dict[str, object]]) -> None:
    for name, content in files.items():
        path = Path(sandbox.workspace, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_module_of_the_workspace_is_imported(javascript: BaseSandbox) -> None:
    lay(
        javascript,
        {
            "lib/one.ts": (
                "import { two } from './two.js'\nexport const sum = (n: number): number => n + two"
            ),
            "lib/two.ts": "export const two: number = 2; export default class Two<T> { v?: T }",
            "data.json": {"a": [1]},
        },
    )
    assert value(javascript, "import { sum } from './lib/one.ts'\nsum(1)") == "3"
    assert value(javascript, "import Two, { two as t } from './lib/two'\n[typeof Two, t]") == (
        "[ 'function', 2 ]"
    )
    assert value(javascript, "import * as all from './lib/two.ts'\nall.two") == "2"
    assert (
        value(javascript, "import data from './data.json' with { type: 'json' }\ndata.a") == "[ 1 ]"
    )
    assert value(javascript, "sum(5) + t") == "9"


def test_an_import_of_types_alone_fetches_nothing(javascript: BaseSandbox) -> None:
    assert value(javascript, "import type { A } from './nowhere.ts'\nlet a: A = 1 as A; a") == "1"


def test_a_module_is_read_again_under_another_query(javascript: BaseSandbox) -> None:
    lay(javascript, {"again.js": "export const v = 1"})
    assert value(javascript, "(await import('./again.js')).v") == "1"
    lay(javascript, {"again.js": "export const v = 2"})
    assert value(javascript, "(await import('./again.js')).v") == "1"
    assert value(javascript, "(await import('./again.js?2')).v") == "2"


def test_packages_of_both_kinds_are_imported(javascript: BaseSandbox) -> None:
    lay(
        javascript,
        {
            "node_modules/es/package.json": {
                "exports": {
                    ".": {"require": "./main.cjs", "import": "./main.mjs"},
                    "./deep/*": "./src/*.js",
                }
            },
            "node_modules/es/main.mjs": "export { inner as default } from './src/inner.js'",
            "node_modules/es/src/inner.js": "export const inner = 'es'",
            "node_modules/@scope/common/package.json": {"main": "lib"},
            "node_modules/@scope/common/lib/index.js": (
                "const other = require('./other'); exports.name = 'common ' + other;\n"
                "exports.path = require('path').join('a', '..', 'b')"
            ),
            "node_modules/@scope/common/lib/other.js": "module.exports = 'kind'",
        },
    )
    assert value(javascript, "import es from 'es'\nes") == "'es'"
    assert value(javascript, "import { inner } from 'es/deep/inner'\ninner") == "'es'"
    code = "import common, { name } from '@scope/common'\n[name, common.path]"
    assert value(javascript, code) == "[ 'common kind', 'b' ]"
    assert value(javascript, "require('@scope/common').name") == "'common kind'"


ABSENT = {
    "./nothing.js": "There is no file /app/./nothing.js.",
    "nothing": "There is no package 'nothing' here. `%npm install nothing`",
    "https://example.org/a.js": "Modules can't be fetched from the network",
    "node:http": "'node:http' is not available in the sandbox.",
    "wasm-kernel:host": "'wasm-kernel:host' is the sandbox's own.",
    "/etc/passwd": "There is no file /etc/passwd.",
    "../../../etc/passwd": "There is no file",
}


def test_a_module_that_can_not_be_imported_says_why(javascript: BaseSandbox) -> None:
    for name, why in ABSENT.items():
        assert why in problem(javascript, f"await import({name!r})")


def test_a_name_of_many_megabytes_costs_the_host_nothing(javascript: BaseSandbox) -> None:
    grown = []
    for call in ("eval", "eval", "import"):  # the guest's memory grows in the first one
        javascript.checkpoints()  # waits until freed memory is given back, after the result
        peak = Peak(process_of(javascript))
        why = problem(javascript, f"await {call}('x'.repeat(1 << 24))")
        grown.append(peak.grown)
    assert "The name of a module has 1 to 4,096 characters." in why
    assert grown[2] < grown[1] + 8 * MB


def test_an_error_in_a_module_names_its_file_and_line(javascript: BaseSandbox) -> None:
    code = "interface A {\n  b: 1\n}\nexport function f() {\n  throw Error('x')\n}"
    lay(javascript, {"bad.ts": code})
    result = javascript.execute("import { f } from './bad.ts'\nf()")
    assert "/app/bad.ts:5:" in traceback_of(result)[1]
    lay(
        javascript,
        {"common.cjs": "#!/usr/bin/env node\nexports.f = () => {\n  throw Error('x')\n}"},
    )
    result = javascript.execute("require('./common.cjs').f()")
    assert "/app/common.cjs:3:" in traceback_of(result)[1]
    lay(javascript, {"wrong.ts": "type A = 1\nexport const x: number = ;\n"})
    why = problem(javascript, "await import('./wrong.ts')")
    assert why.endswith("/app/wrong.ts can't be read as TypeScript: Unexpected token ';', at 2:26")
    lay(javascript, {"cut.js": "export const a = 1\nexport const x = (\n"})
    result = javascript.execute("import './cut.js'")
    assert error_of(result).endswith(": Unexpected end of the text")
    assert traceback_of(result)[1].endswith("at /app/cut.js:3")  # the column is not known
    lay(javascript, {"broken.cjs": "\nexports.f = (\n"})
    result = javascript.execute("require('./broken.cjs')")
    assert error_of(result).startswith("SyntaxError:")
    assert "/app/broken.cjs:4" in traceback_of(result)[1]
