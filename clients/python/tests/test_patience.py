"""When a call is sent again and what it ends with, without a server."""

from __future__ import annotations

import json

import pytest
import remuda_client as rc
from remuda_client._core import LOST_SECONDS_MAX, Call, Missed, Patience, lost, refused, seal


def call(kind: str | None = "execute", **more: object) -> Call:
    return Call("POST", "/v1/x", kind=kind, **more)  # type: ignore[arg-type]


def patience(made: Call) -> Patience:
    return Patience(seal(made), LOST_SECONDS_MAX)


def no_answer(sent: bool) -> Missed:
    return lost(seal(call()), "there", OSError("reset"), sent=sent)


def answer(status: int, code: str, *, replayed: bool = False) -> Missed:
    body = json.dumps({"error": {"code": code, "message": "m"}}).encode()
    return refused(seal(call()), status, {"idempotent-replay": "true"} if replayed else {}, body)


def test_a_server_that_was_never_there_is_not_waited_for() -> None:
    with pytest.raises(rc.NotStarted):
        patience(call()).after(no_answer(sent=False), 0)
    with pytest.raises(rc.Unreachable):
        patience(call(kind=None)).after(no_answer(sent=False), 0)


def test_a_lost_one_is_looked_for_with_growing_pauses_and_not_for_ever() -> None:
    waiting = patience(call())
    first = waiting.after(no_answer(sent=True), 0)
    assert waiting.after(no_answer(sent=False), first) > first
    with pytest.raises(rc.OutcomeUnknown) as unknown:
        waiting.after(no_answer(sent=False), LOST_SECONDS_MAX)
    assert unknown.value.key


def test_one_that_is_ending_did_not_begin_the_call_and_is_waited_for() -> None:
    waiting = patience(call())
    assert waiting.after(answer(503, "shutting_down"), 0) > 0
    assert waiting.after(no_answer(sent=False), 1) > 0
    with pytest.raises(rc.NotStarted):
        waiting.after(no_answer(sent=False), LOST_SECONDS_MAX)


def test_what_the_first_sending_came_to_is_final() -> None:
    with pytest.raises(rc.ServerFailed):
        patience(call()).after(answer(500, "internal", replayed=True), 0)
    with pytest.raises(rc.OutcomeUnknown):
        patience(call()).after(answer(500, "internal"), 0)


def test_a_refusal_tells_of_an_earlier_sending_only_where_the_key_was_looked_at() -> None:
    for code, status, ends in (("slot_in_use", 409, rc.Conflict), ("unauthorized", 401, rc.OutcomeUnknown)):
        waiting = patience(call())
        waiting.after(no_answer(sent=True), 0)
        with pytest.raises(ends):
            waiting.after(answer(status, code), 1)


def test_what_has_no_key_and_what_is_read_once_goes_out_once() -> None:
    for made in (call(kind=None, once=True), call(body=iter([b"x"]))):
        with pytest.raises(rc.OutcomeUnknown):
            patience(made).after(no_answer(sent=True), 0)


def test_what_makes_something_is_ambiguous() -> None:
    with pytest.raises(rc.CreationAmbiguous):
        patience(call(kind="create", body=iter([b"x"]))).after(no_answer(sent=True), 0)


def test_newer_generations_make_an_id_stale() -> None:
    for details, kind in (({}, rc.Gone), ({"slot_has_newer": True}, rc.Stale), ({"continued_as": "c1@x"}, rc.Stale)):
        body = json.dumps({"error": {"code": "generation_gone", "message": "m", "details": details}}).encode()
        with pytest.raises(kind) as ended:
            patience(call()).after(refused(seal(call()), 410, {}, body), 0)
        assert type(ended.value) is kind
