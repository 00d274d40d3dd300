"""Modules and packages that lie in the workspace, and built-in ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faces import error_of, process_of, traceback_of
from tests.guests.javascript.conftest import problem, value
from tests.peak import MB, Peak
from wasm_kernel import BaseSandbox, create_sandbox
from wasm_kernel.guests.javascript import broker_handlers


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


def test_imports_of_types_fetch_nothing_and_failures_say_why(javascript: BaseSandbox) -> None:
    assert value(javascript, "import type { A } from './nowhere.ts'\nlet a: A = 1 as A; a") == "1"
    for name, why in ABSENT.items():
        assert why in problem(javascript, f"await import({name!r})")


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


FAKE = """#!{python}
import json, os, pathlib, sys, time
words, lock = sys.argv[1:], {{}}
assert "--ignore-scripts" in words and "--no-bin-links" in words, words
for wanted in words[words.index("--") + 1:]:
    name, _, version = wanted.partition("@")
    if name == "missing":
        sys.exit("npm error code E404\\nnpm error 404  'missing@*' is not in this registry.")
    folder = pathlib.Path("node_modules", name)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({{"name": name}}))
    (folder / "index.js").write_text(f"export default {{name!r}}")
    if name == "compiled":
        (folder / "it.node").write_text("")
    if name == "linked":
        (folder / "out").symlink_to("/etc/passwd")
    if name == "many":
        for number in range(40):
            (folder / str(number)).touch()
    lock["node_modules/" + name] = {others}.get(name, {{}}) | {{"version": version or "1.0.0"}}
    if name == "endless":
        lock["node_modules/" + name]["license"] = "x" * 20_000_000
pathlib.Path("node_modules", ".package-lock.json").write_text(json.dumps({{"packages": lock}}))
"""
OTHERS: dict[str, object] = {
    "copied": {"resolved": "file:../../home"},
    "cloned": {"resolved": "git+ssh://git@example.org/x.git#0123"},
    "linking": {"link": True, "resolved": "elsewhere"},
    "asking": {"dependencies": {"inner": "http://10.0.0.1/x.tgz"}},
    "short": {"optionalDependencies": {"inner": "owner/private"}},
    "fine": {
        "resolved": "https://example.org/x.tgz",
        "dependencies": {"x": "^1 || 2", "y": "npm:@a/b@2"},
    },
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSandbox]:
    folder = tmp_path_factory.mktemp("npm")
    with create_sandbox("javascript", folder / "app", pip=True) as made:
        yield made


@pytest.fixture(autouse=True)
def _npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npm"
    program.write_text(FAKE.format(python=sys.executable, others=OTHERS))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_packages_come_go_and_are_listed(sandbox: BaseSandbox) -> None:
    result = sandbox.execute("%npm install one two@2.0.0 fine\nimport one from 'one'\none")
    assert result.stdout.endswith("Installed one 1.0.0, two 2.0.0, fine 1.0.0.\n")
    assert value(sandbox, "import two from 'two'\n[one, two]") == "[ 'one', 'two' ]"
    assert sandbox.execute("%npm list").stdout == "one 1.0.0\ntwo 2.0.0\nfine 1.0.0\n"
    sandbox.execute("%npm install one")  # other packages stay as they are
    assert sandbox.execute("%npm list").stdout == "one 1.0.0\ntwo 2.0.0\nfine 1.0.0\n"
    assert sandbox.execute("%npm uninstall one two fine").stdout.endswith(
        "Removed one, two, fine.\n"
    )
    assert "There is no package 'one?2' here" in problem(sandbox, "await import('one?2')")


REFUSED = {
    "missing": "Nothing was changed: npm finds no such package: missing.",
    "compiled": "Nothing was changed: compiled needs compiled code, which the sandbox can't",
    "copied": "Nothing was changed: copied is not from the package registry",
    "linking": "linking is not from the package registry",
    "asking": "inner is not from the package registry",
    "endless": "Nothing was changed: npm's list of these packages is too long.",
    "../folder": "'../folder' is not the name of a package",
    "git+https://example.org/x.git": "is not the name of a package",
    "x@file:../y": "is not the name of a package",
    "x@npm:other": "is not the name of a package",
    "x.tgz": "is not the name of a package",
    "--ignore-scripts=false": "is not the name of a package",
}


def test_wrong_lines_and_code_that_asks_are_refused_in_words(sandbox: BaseSandbox) -> None:
    for words, why in REFUSED.items():
        assert why in problem(sandbox, f"%npm install {words}"), words
    result = sandbox.execute("`\n%npm install one\n`.length")
    assert (result.stdout, result.success) == ("", True)


def test_endless_files_are_refused(sandbox: BaseSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_handlers, "FILES_MOST", 30)
    assert "these are more than 30 files" in problem(sandbox, "%npm install many")


def test_links_in_packages_lead_nowhere(sandbox: BaseSandbox) -> None:
    sandbox.execute("%npm install linked")
    place = "/usr/local/lib/javascript/node_modules/linked"
    code = f"const fs = require('fs'); fs.readdirSync('{place}')"
    assert value(sandbox, code) == "[ 'index.js', 'package.json' ]"
    assert "E" in problem(sandbox, f"fs.writeFileSync('{place}/index.js', '')")


def test_npm_is_off_unless_it_is_allowed(javascript: BaseSandbox) -> None:
    assert "%npm is not allowed in this sandbox" in problem(javascript, "%npm install one")
