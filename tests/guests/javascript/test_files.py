"""Files through `node:fs` and `node:fs/promises`: the same walls as for every language."""

from __future__ import annotations

from pathlib import Path

from tests.guests.javascript.conftest import problem, value
from wasm_kernel import BaseSandbox

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


def test_the_result_names_files_and_undo_brings_them_back(javascript: BaseSandbox) -> None:
    write = "import { writeFileSync, readFileSync } from 'node:fs'\nwriteFileSync('f', {!r})"
    assert javascript.execute(write.replace("{!r}", "'one'")).files_created == ("f",)
    assert javascript.execute(write.replace("{!r}", "'two'")).files_modified == ("f",)
    javascript.execute("%undo --files")
    assert value(javascript, "readFileSync('f', 'utf8')") == "'one'"


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


def test_nothing_outside_is_reached(javascript: BaseSandbox) -> None:
    link = Path(javascript.workspace, "out")
    link.symlink_to("/")
    for code, error in OUTSIDE.items():
        assert problem(javascript, f"{IMPORT}await {code}").startswith(f"Error: {error}"), code
    link.unlink()
