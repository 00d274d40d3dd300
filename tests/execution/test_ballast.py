"""The objects of a cell lie side by side, so that few pages change, and little is saved."""

from __future__ import annotations

from wasm_kernel import BaseSandbox

PAGES = """
kept = [bytes(40) for _ in range(2000)]
print(len({id(one) >> 12 for one in kept}))
"""


def test_small_objects_of_a_cell_share_pages(sandbox: BaseSandbox) -> None:
    pages = int(sandbox.execute(PAGES).stdout)
    assert pages < 100  # 24 at best; over 500 if they fill the holes of the image


def test_a_tiny_cell_changes_few_pages(sandbox: BaseSandbox) -> None:
    for _ in range(6):
        sandbox.execute("x = 1")
    head = sandbox.checkpoints()[-1]
    # over 480 pages without ballast, 280 with it, 170 if the code that a turn runs lies together
    assert 0 < head.bytes < 230 * 4096
