"""The client has what the API has: every operation is a method, with every parameter, in both forms."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest
from remuda_client import AsyncRemuda, Remuda
from world import ROOT

HERE = ROOT / "clients" / "python"
DOCUMENT: dict[str, Any] = json.loads((ROOT / "openapi" / "remuda.json").read_text())
OPERATIONS = [
    (operation["operationId"], operation)
    for item in DOCUMENT["paths"].values()
    for method, operation in item.items()
    if method in ("get", "put", "post", "delete", "patch", "head")
]
#: Six operations that differ in their method alone are one method.
NAMES = {f"port_{method}": "request_port" for method in ("get", "put", "post", "delete", "patch", "head")}
#: Headers that a method has under another name, or sends by itself.
RENAMED = {"idempotency-key": "key"}


def test_there_are_operations() -> None:
    assert len(OPERATIONS) > 70


@pytest.mark.parametrize("kind", [Remuda, AsyncRemuda])
@pytest.mark.parametrize("name,operation", OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_every_operation_is_a_method_with_all_of_its_parameters(kind: type, name: str, operation: dict[str, Any]) -> None:
    method = getattr(kind, NAMES.get(name, name))
    has = set(inspect.signature(method).parameters)
    for parameter in operation.get("parameters", []):
        word = parameter["name"].lower()
        word = RENAMED.get(word, word).replace("-", "_")
        if name == "read_events" and word == "last_event_id":
            # The stream of it is a method of its own.
            assert "after" in inspect.signature(kind.follow_events).parameters  # type: ignore[attr-defined]
            continue
        assert word in has or f"{word}_" in has, f"{name} has no {word}"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        for member in DOCUMENT["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]["properties"]:
            assert member in has, f"{name} has no {member}"


def test_what_is_generated_is_current() -> None:
    done = subprocess.run([sys.executable, str(HERE / "generate.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_types_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "src", "tests"], cwd=HERE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
