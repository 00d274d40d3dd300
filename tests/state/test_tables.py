"""A session's states as a table and as a tree."""

from __future__ import annotations

import time
from typing import Any

from wasm_kernel.result import Ran
from wasm_kernel.state.tables import CheckpointTable, HistoryTree


def state(one: int, parent: int, label: str = "", **fields: Any) -> dict[str, Any]:
    plain = {"name": "", "time": 0.0, "bytes": 2048, "here": False}
    return {**plain, "id": one, "parent": parent, "cell": one - 1, "label": label, **fields}


BRANCHED = [
    state(1, 0),
    state(2, 1, "x = 1", name="one"),
    state(2, 1, "x = 1", name="two"),
    state(3, 2, "x = 2"),
    state(4, 3, "x = 3"),
    state(5, 2, "x = 4", here=True),
    state(6, 1, "y = 1"),
]


def nodes(tree: HistoryTree) -> list[str]:
    """The prefixes of the first lines of cells."""
    return [line.split("  ")[0].rstrip() for line in tree.text().splitlines()]


def test_branches_hang_off_the_line_that_leads_here() -> None:
    assert nodes(HistoryTree(BRANCHED)) == [
        "● the beginning",
        "├─○ In[5]",
        "● In[1]",
        "├─○ In[2]",
        "│ ○ In[3]",
        "● In[4]",
    ]


def test_the_tree_tells_names_where_memory_stands_how_cells_ran_and_which_are_undone() -> None:
    ran = {3: Ran(error="<i>", seconds=0.25), 5: Ran(sent=True, seconds=3.0)}
    tree = HistoryTree(BRANCHED, ran)
    lines = tree.text().splitlines()
    assert "'one', 'two'" in lines[2]
    assert [line.endswith("<- here") for line in lines] == [False] * 5 + [True]
    assert "<i>, undone, 250 ms, 2.0 KiB" in lines[3]
    assert "sent requests, can't be unsent, 3.0 s, 2.0 KiB" in lines[5]
    assert "undone, 2.0 KiB" in lines[1]
    assert "&lt;i&gt;, undone, 250 ms" in tree.html()


def test_a_state_whose_parent_is_folded_away_begins_a_tree() -> None:
    assert nodes(HistoryTree([state(7, 4), state(8, 7, here=True)])) == ["● In[6]", "● In[7]"]


def test_html_nests_the_branches_and_escapes_labels() -> None:
    html = HistoryTree([*BRANCHED, state(7, 6, "<script>")]).html()
    assert html.count("<ul>") == html.count("</ul>") == 3
    assert html.count("<li>") == 7
    assert html.count("<b>") == 1
    assert "<script>" not in html


def test_the_table_lists_each_name_and_the_date_where_it_is_not_today() -> None:
    text = CheckpointTable(BRANCHED).text()
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["one", "two"]
    assert "<script>" not in CheckpointTable([state(1, 0, "<script>")]).html()
    now = time.time()
    assert (
        time.strftime("  %H:%M:%S  ", time.gmtime(now))
        in CheckpointTable([state(1, 0, time=now)]).text()
    )
    earlier = time.gmtime(now - 100_000)
    assert (
        time.strftime("%Y-%m-%d %H:%M", earlier)
        in CheckpointTable([state(1, 0, time=now - 100_000)]).text()
    )


def test_branches_of_branches_of_any_depth_are_drawn() -> None:
    """The host must not run out of its own stack here: each state below begins two branches."""
    deep = [state(1, 0)]
    for one in range(2, 4_000, 2):
        deep += [state(one, max(1, one - 2), here=one == 2), state(one + 1, max(1, one - 2))]
    tree = HistoryTree(deep)
    assert len(tree.text().splitlines()) == len(deep)
    assert max(map(len, tree.text().splitlines())) < 200
    assert tree.html().count("<li>") == tree.html().count("</li>") == len(deep)
