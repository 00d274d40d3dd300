"""Compares the description of a server with the models of E2B's client, made from E2B's own."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import urllib.request
from typing import Any

PLACE = "e2b.api.client.models"
SHARED = {"Error", "SandboxDetail", "ListedSandbox", "NewSandbox", "Sandbox", "SandboxLifecycle"}
SHARED |= {"ConnectSandbox", "SandboxTimeoutRequest", "SandboxPauseRequest", "SandboxMetric"}
SHARED |= {"SandboxForkRequest", "SandboxForkResult", "SandboxAutoResumeConfig"}


def fields(name: str) -> dict[str, bool]:
    """Returns the names in a model of the client, each with whether it must be there."""
    plain = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
    model = getattr(importlib.import_module(f"{PLACE}.{plain}"), name)
    found = re.findall(r'd\.pop\("(\w+)"(, UNSET)?\)', inspect.getsource(model.from_dict))
    return {key: not default for key, default in found}


with urllib.request.urlopen(f"{os.environ['E2B_API_URL']}/openapi.json") as answer:
    description: dict[str, Any] = json.load(answer)
schemas = description["components"]["schemas"]
assert schemas.keys() >= SHARED, SHARED - schemas.keys()
for name in sorted(SHARED):
    theirs, ours = fields(name), schemas[name]
    assert ours["properties"].keys() <= theirs.keys(), (name, ours["properties"].keys())
    missing = {key for key, is_needed in theirs.items() if is_needed} - ours["properties"].keys()
    assert not missing, (name, missing)
print(len(SHARED))
