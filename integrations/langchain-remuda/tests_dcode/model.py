"""A model endpoint that follows a script: it calls tools as it is told, and says what they answered."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class ScriptedModel:
    """Answers each turn with the next step: a dictionary is a call of `execute` and so on, a text the last word."""

    def __init__(self, steps: list[dict[str, Any] | str]) -> None:
        self.steps = steps
        #: The messages of each request, for whoever looks what the model was told.
        self.requests: list[list[dict[str, Any]]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                turn = sum(message["role"] == "tool" for message in body["messages"])
                model.requests.append(body["messages"])
                step = model.steps[min(turn, len(model.steps) - 1)] if body.get("tools") else "a title"
                message = _message(step, turn)
                if body.get("stream"):
                    self._send("text/event-stream", _stream(message))
                else:
                    choice = {"index": 0, "message": message, "finish_reason": _reason(message)}
                    self._send("application/json", json.dumps(_envelope("chat.completion", [choice])).encode())

            def _send(self, kind: str, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ScriptedModel:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def tool_answers(self) -> list[str]:
        """What the tools answered, in order."""
        longest = max(self.requests, key=len)
        return [str(message["content"]) for message in longest if message["role"] == "tool"]


def _message(step: dict[str, Any] | str, turn: int) -> dict[str, Any]:
    if isinstance(step, str):
        return {"role": "assistant", "content": step}
    name, arguments = step["tool"], json.dumps(step["arguments"])
    call = {"id": f"call-{turn}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _reason(message: dict[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _envelope(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "c", "object": kind, "created": 0, "model": "scripted", "choices": choices, "usage": usage}


def _stream(message: dict[str, Any]) -> bytes:
    delta = dict(message)
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(calls)]
    chunks = [
        [{"index": 0, "delta": delta, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": _reason(message)}],
    ]
    lines = [f"data: {json.dumps(_envelope('chat.completion.chunk', choices))}\n\n" for choices in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()
