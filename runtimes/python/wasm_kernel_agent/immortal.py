"""Which objects of the base image will never die.

Every use of an object writes its reference count, so a cell that uses a little of IPython would
write to hundreds of the image's pages, each of which has to be copied, tracked and saved. Objects
of the image live as long as the guest anyhow: the host marks them immortal (PEP 683) where they
lie, and their counts are never written again.
"""

from __future__ import annotations

import base64
import gc
from array import array
from types import CodeType

from wasm_kernel_agent.door import Door

_AT_ONCE = 250_000


def everything() -> list[object]:
    """Every object that can be reached from the collector's, each once."""
    found = gc.get_objects()
    seen = set(map(id, found))
    fresh = found
    while fresh:
        referents = [*gc.get_referents(*fresh), *_of_code(fresh)]
        fresh = [one for one in {id(r): r for r in referents}.values() if id(one) not in seen]
        seen.update(map(id, fresh))
        found = found + fresh
    return found


def _of_code(objects: list[object]) -> list[object]:
    """What code objects refer to: the collector does not look into them."""
    return [
        part
        for code in objects
        if isinstance(code, CodeType)
        for part in (
            *(code.co_consts, code.co_names, code.co_filename, code.co_name, code.co_qualname),
            *(*code.co_varnames, *code.co_cellvars, *code.co_freevars),
            *(code.co_linetable, code.co_exceptiontable),
        )
    ]


def tell(door: Door) -> None:
    """Tell the host where the objects lie. Only the boot turn may."""
    gc.collect()
    objects = everything()
    addresses = array("I", map(id, objects))
    del objects
    for at in range(0, len(addresses), _AT_ONCE):
        chunk = addresses[at : at + _AT_ONCE].tobytes()
        door.send({"op": "immortal", "addresses": base64.b64encode(chunk).decode()})
