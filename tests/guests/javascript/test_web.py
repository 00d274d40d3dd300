"""The interfaces of the web and of Node in cells; their files have the walls of every language."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faces import says
from tests.guests.javascript.conftest import problem, value
from wasm_kernel import BaseSandbox

# the URL, its base, and the expected parts
URLS = [
    ("http://example\t.\norg", "http://example.org/foo/bar", "http://example.org/"),
    ("\t   :foo.com   \n", "http://example.org/foo/bar", "http://example.org/foo/:foo.com"),
    ("http://f:00000000000000000000080/c", None, "http://f/c"),
    ("", "http://example.org/foo/bar?old#h", "http://example.org/foo/bar?old"),
    ("http://example.com/foo/%2e./%2e%2e/.%2e/%2e.bar", None, "http://example.com/%2e.bar"),
    ("http://192.168.0.257", None, None),
    ("http://0x7f.1", None, "http://127.0.0.1/"),
    ("http://[::1]:80/", None, "http://[::1]/"),
    ("http://[0:0:0:0:0:0:0:0:0]", None, None),
    ("mailto:x@example.com", None, "mailto:x@example.com"),
    ("file:///C|/x/../y", None, "file:///C:/y"),
    ("non-special://host:90/p?q", None, "non-special://host:90/p?q"),
]


CHANGED = """
const u = new URL('http://a/b')
u.searchParams.append('x', 'ä &'); u.port = '81'; u.hash = 'h'
u.href
"""
IN_PIECES = """
const d = new TextDecoder()
d.decode(new Uint8Array([0xe2, 0x82]), { stream: true }) + d.decode(new Uint8Array([0xac]))
"""
CLONED = """
const a = { d: new Date(0), m: new Map([[1, { x: [1] }]]) }; a.self = a
const b = structuredClone(a); [b !== a, b.self === b, b.m.get(1).x[0], b.d.getTime()]
"""


def test_urls(javascript: BaseSandbox) -> None:
    cases = json.dumps([[url, base] for url, base, _ in URLS])
    look = "([url, base]) => URL.parse(url, base ?? undefined)?.href ?? null"
    code = f"console.log(JSON.stringify({cases}.map({look})))"
    assert dict(zip(URLS, json.loads(says(javascript, code)), strict=True)) == {
        case: case[2] for case in URLS
    }


THERE = {
    CHANGED: "'http://a:81/b?x=%C3%A4+%26#h'",
    "[...new URLSearchParams('a=1&b=%20+&a=3&c')].join('|')": "'a,1|b,  |a,3|c,'",
    "new TextDecoder().decode(new Uint8Array([0xef, 0xbb, 0xbf, 97, 0xff]))": "'a\ufffd'",
    IN_PIECES: "'€'",
    "new TextDecoder().decode(new TextEncoder().encode('€'.repeat(3e6))).length": "3000000",
    CLONED: "[ true, true, 1, 0 ]",
    "crypto.getRandomValues(new Uint8Array(8)).some(Boolean)": "true",
    "/^[\\da-f]{8}-[\\da-f]{4}-4[\\da-f]{3}-[89ab]/.test(crypto.randomUUID())": "true",
    "new Map([['a', { b: new Set([1]) }]])": "Map(1) { 'a' => { b: Set(1) { 1 } } }",
    "({ get a() { throw 1 }, [Symbol('s')]: 1n })": "{ a: [Getter], [Symbol(s)]: 1n }",
    "const o = { list: [] }; o.list.push(o); o": "<ref *1> { list: [ [Circular *1] ] }",
    "new Uint8Array([1, 2])": "Uint8Array(2) [ 1, 2 ]",
    "Array.from({ length: 3 }, (_, i) => ({ i }))": "   i\n-  -\n0  0\n1  1\n2  2",
}
REFUSED = {
    "structuredClone(() => 1)": "DataCloneError: ",
    "new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array([255]))": "TypeError: ",
    "new URL('nothing')": "TypeError: Invalid URL: nothing",
    "crypto.getRandomValues(new Float32Array(1))": "TypeMismatchError: ",
}


def test_interfaces_are_shown_and_refuse_wrong_arguments(javascript: BaseSandbox) -> None:
    assert {code: value(javascript, code) for code in THERE} == THERE
    for code, error in REFUSED.items():
        assert problem(javascript, code).startswith(error), code


def test_rich_outputs_and_tables(javascript: BaseSandbox) -> None:
    code = """
    display.html('<b>1</b>'); display.json({ a: 1 }); display.svg('<svg/>')
    display({ 'text/latex': '$x$' }); display.png(new Uint8Array([1, 2]))
    ;({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': '<i>own</i>' }) })
    """
    outputs = javascript.execute(code).outputs
    assert [next(iter(output.data.items())) for output in outputs] == [
        ("text/html", "<b>1</b>"),
        ("application/json", {"a": 1}),
        ("image/svg+xml", "<svg/>"),
        ("text/latex", "$x$"),
        ("image/png", "AQI="),
        ("text/html", "<i>own</i>"),
    ]
    (table,) = javascript.execute("[{ a: '<x>' }]").outputs
    assert "<td>&lt;x&gt;</td>" in table.data["text/html"]


IMPORT = "import * as fs from 'node:fs/promises'\n"


def test_files_are_written_read_and_listed(javascript: BaseSandbox) -> None:
    code = """
    await fs.mkdir('a/b', { recursive: true })
    await fs.writeFile('a/b/text.txt', 'grüße')
    await fs.appendFile('a/b/text.txt', '!')
    await fs.writeFile('a/raw', new Uint8Array([0, 255, 10]))
    const found = await fs.stat('a/raw')
    ;[await fs.readFile('a/b/text.txt', 'utf8'), [...await fs.readFile('/app/a/raw')],
      await fs.readdir('a'), found.size, found.isFile(), await fs.readdir('a', { recursive: true })]
    """
    assert value(javascript, IMPORT + code) == (
        "[\n  'grüße!',\n  [ 0, 255, 10 ],\n  [ 'b', 'raw' ],\n  3,\n  true,\n"
        "  [ 'b', 'b/text.txt', 'raw' ]\n]"
    )
    assert Path(javascript.workspace, "a/b/text.txt").read_text() == "grüße!"
    code = """
    await fs.rename('a/raw', 'moved'); await fs.copyFile('moved', 'copy')
    await fs.truncate('copy', 1); await fs.symlink('copy', 'link')
    await fs.rm('a', { recursive: true })
    ;[(await fs.readFile('link')).length, await fs.readlink('link'),
      (await fs.lstat('link')).isSymbolicLink(), await fs.realpath('./link'),
      await fs.readdir('.')].flat().join()
    """
    assert value(javascript, IMPORT + code) == "'1,copy,true,/app/copy,copy,link,moved'"


def test_files_are_named_come_back_and_never_lie_outside(javascript: BaseSandbox) -> None:
    write = "import { writeFileSync, readFileSync } from 'node:fs'\nwriteFileSync('f', {!r})"
    assert javascript.execute(write.replace("{!r}", "'one'")).files_created == ("f",)
    assert javascript.execute(write.replace("{!r}", "'two'")).files_modified == ("f",)
    javascript.execute("%undo --files")
    assert value(javascript, "readFileSync('f', 'utf8')") == "'one'"
    link = Path(javascript.workspace, "out")
    link.symlink_to("/")
    for code, error in OUTSIDE.items():
        assert problem(javascript, f"{IMPORT}await {code}").startswith(f"Error: {error}"), code
    link.unlink()


OUTSIDE = {
    "fs.readFile('nothing')": "ENOENT: no such file or directory, read '/app/nothing'",
    "fs.readFile('/etc/passwd')": "ENOENT",
    "fs.readFile('out/etc/passwd')": "ENO",
    "fs.writeFile('/usr/local/lib/javascript/x', '')": "E",
    "fs.readFile('.metadata.json')": "ENOENT",
    "fs.rmdir('/app')": "E",
    "fs.symlink('/etc', 'abs')": "EPERM",
    "fs.writeFile('x'.repeat(5000), '')": "ENAMETOOLONG",
    "fs.writeFile('a\\0b', '')": "EINVAL",
    "fs.writeFile('.metadata.json', '')": "E",
}
