"""Cells that send payloads on every route from a cell to a front end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from tests.outputs.payloads import Payload

BEGIN = """
import json, sys
class Shown:
    def __init__(self, data, metadata):
        self.data, self.metadata = data, metadata
    def _repr_mimebundle_(self, **kwargs):
        return self.data, self.metadata
shell = get_ipython()
"""

ROUTES = {
    "display": "display(data, raw=True, metadata=metadata)",
    "update": "display({'text/plain': name}, raw=True, display_id=name + 'u')"
    ".update(data, raw=True, metadata=metadata)",
    "result": "shell.displayhook(Shown(data, metadata))",
    "stdout": "print(text)",
    "stderr": "print(text, file=sys.stderr)",
    "error": """
    try:
        raise type(text[:200].replace(chr(0), ''), (Exception,), {})(text)
    except Exception:
        shell.showtraceback()
""",
    "cleared": """
    from IPython.display import clear_output
    clear_output(wait=True)
    display(data, raw=True, metadata=metadata)
""",
}


def cells(payloads: Iterable[Payload], routes: Iterable[str], step: int = 50) -> Iterator[str]:
    """The source of cells: the first holds the payloads, the others send them."""
    rows = [[payload.name, payload.data, payload.metadata] for payload in payloads]
    yield f"{BEGIN}\npayloads = json.loads({json.dumps(json.dumps(rows))})"
    for route in routes:
        for start in range(0, len(rows), step):
            yield (
                f"for name, data, metadata in payloads[{start}:{start + step}]:\n"
                f"    text = str(next(iter(data.values())))\n    {ROUTES[route].strip()}"
            )
