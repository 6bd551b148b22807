"""Forms that the console or a broker refuses: the error, and the form with what the user typed."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from escapement import testing
from escapement.console.app import USER_S
from escapement.console.pages import PAGES
from escapement.protocol.limits import MAX_REASON_CHARS
from support.console.filled import MAILS, ORDERS, RETURNS, filled
from support.console.forms import form_of
from support.console.visitor import Visitor, text_of, visiting

LONG = "x" * (MAX_REASON_CHARS + 1)
SHIPPING = {"topic": ORDERS, "subscription": "shipping"}
SCHEDULE = "/schedules/shop/eu/nightly-report"
LETTERS = f"/dead-letters/{MAILS}/sender"
TIMES = {"by": "every", "cron": "0 9 * * *", "every": "90m", "timezone": "Asia/Tokyo"}
MESSAGES = {"kind": "json", "payload": '{"a": "<b>"}', "key": "k"}


def examples() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return addresses and fields for each path of a form that gives a reason."""
    one = "/schedules/{tenant}/{namespace}/{name}"
    letters = "/dead-letters/{tenant}/{namespace}/{name}/{subscription}"
    schedule = {"topic": MAILS, "until": "2027-04-01T10:00", "missed": "all", "spread": "3m"}
    spread = {"id": ["0", "1"], "spread": "10m", "cause": "rejected"}
    alone = {"id": "1", "alone": "true"}
    selected = [f"{ORDERS}@{offset}" for offset in (276, 300)]
    all_later = {"where": RETURNS, "key": "return-9"}
    due = {"delay": "3h", "at": "2027-04-01T10:00", "spread": "2h"}
    return {
        "/subscription/pause": [("/subscription/pause", {**SHIPPING, "duration": "soon"})],
        "/subscription/resume": [("/subscription/resume", {**SHIPPING, "duration": "1h"})],
        "/subscription/seek": [
            ("/subscription/seek", {**SHIPPING, "to": "offset", "value": "7", "confirmed": "yes"})
        ],
        "/brokers/move": [("/brokers/move", {"bundle": "0", "node": ""})],
        "/brokers/drain": [("/brokers/drain", {})],
        "/brokers/undrain": [("/brokers/undrain", {})],
        "/schedules/new": [
            ("/schedules/new", {"name": "shop/eu/x", **schedule, **TIMES, **MESSAGES})
        ],
        f"{one}/edit": [(f"{SCHEDULE}/edit", {**schedule, **TIMES, **MESSAGES, "content": "true"})],
        f"{one}/delete": [(f"{SCHEDULE}/delete", {"name": "shop/eu/nightly-report"})],
        f"{one}/actions/{{action}}": [
            (f"{SCHEDULE}/actions/{action}", {}) for action in ("pause", "run_now")
        ],
        f"{letters}/redrive": [(f"{LETTERS}/redrive", spread), (f"{LETTERS}/redrive", alone)],
        f"{letters}/purge": [
            (f"{LETTERS}/purge", {**spread, "typed": "2"}),
            (f"{LETTERS}/purge", {**alone, "typed": "1"}),
        ],
        f"{letters}/purge-all": [(f"{LETTERS}/purge-all", {"typed": "sender"})],
        "/act/now": [
            ("/act/now", {"action": "cancel", "id": selected, "sure": "true", "back": "/find"}),
            ("/act/now", {"action": "reschedule", **all_later, **due}),
        ],
        "/produce": [
            (
                "/produce",
                {
                    "from": f"{MAILS}-sender-DLQ@0", "topic": MAILS, "properties": '{"a": 1}',
                    "priority": "7", "group": "g", "dedup": "d", "replace": "r",
                    "replace_mode": "first", "when": "delay", "delay": "3m", "purge": "true",
                    **MESSAGES,
                },
            )
        ],
    }  # fmt: skip


async def refused(visitor: Visitor, path: str, fields: dict[str, Any], status: int) -> str:
    """Send a form that is refused. Check that the page has its fields, and return the error."""
    answer = await visitor.send(path, fields)
    assert answer.status_code == status, (path, text_of(answer))
    shown = form_of(answer, path)
    for name, value in fields.items():
        assert shown.get(name) == ([value] if isinstance(value, str) else value), (path, name)
    _, _, said = answer.text.partition('<div id="trouble" role="alert"><p class="trouble">')
    return said.partition("</p>")[0]


async def test_each_refused_form_keeps_what_was_typed(mock_clock: trio.testing.MockClock) -> None:
    """B14: and nothing has changed."""
    paths = {page.path for page in PAGES if page.method == "POST"}
    assert examples().keys() == paths - {"/act", "/jobs/stop"}
    async with filled() as shop, visiting(shop.world, shop.admin.text) as visitor:
        before = (await shop.broker.admin("audit.list", count=1))["actions"]
        for cases in examples().values():
            for path, fields in cases:
                said = await refused(visitor, path, fields | {"reason": LONG}, 400)
                assert "reason" in said or "soon" in said, path
        assert (await shop.broker.admin("audit.list", count=1))["actions"] == before
        job = await shop.broker.bulk.cancel(RETURNS, key="return-8")
        fields = {"topic": RETURNS, "id": str(job.id), "reason": LONG}
        assert "reason" in await refused(visitor, "/jobs/stop", fields, 400)


async def test_list_keeps_its_filter_if_an_action_names_no_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: also the selection, if it is refused for another reason."""
    async with filled() as shop, visiting(shop.world, shop.admin.text) as visitor:
        back = f"/find?where={ORDERS}&property=shop%3Dberlin"
        answer = await visitor.send("/act", {"action": "cancel", "back": back})
        assert (answer.status_code, "Select at least one" in text_of(answer)) == (400, True)
        assert form_of(answer, "/find")["property"] == ["shop=berlin", ""]
        first, second, *_ = [
            one.split('"')[0] for one in answer.text.split('name="id" value="')[1:]
        ]
        fields = {"action": "explode", "back": back, "id": [first, second]}
        answer = await visitor.send("/act", fields)
        assert answer.status_code == 400
        fields = {"action": "cancel", "back": back, "id": [first, second, "no id"]}
        answer = await visitor.send("/act", fields)
        assert (answer.status_code, "is not a message id" in text_of(answer)) == (400, True)
        forms = answer.text.partition("data-selection")[2]
        assert forms.count(" checked") == 2
        for wrong in ("/find?after=x", "/find?from=soon", "/find?state=x", "/elsewhere?x=1"):
            answer = await visitor.send("/act", {"action": "cancel", "back": wrong})
            assert (answer.status_code, "Select at least one" in text_of(answer)) == (400, True)


async def test_refusal_of_a_broker_keeps_its_status(mock_clock: trio.testing.MockClock) -> None:
    """B14: here, no other broker can take the bundles."""
    async with testing.start() as world, world.connect() as broker, visiting(world) as visitor:
        (node,) = (await broker.admin("cluster.status"))["nodes"]
        fields = {"node": node["id"], "reason": "ticket 4711"}
        said = await refused(visitor, "/brokers/drain", fields, 409)
        assert "No other node can take the bundles" in said
        # Without the thing that the form is about, the page has only the error.
        gone = {"topic": "shop/eu/gone", "subscription": "s", "duration": "1h"}
        answer = await visitor.send("/subscription/pause", gone)
        assert answer.status_code == 404
        assert "shop/eu/gone" in text_of(answer)


async def test_message_is_not_lost_if_the_brokers_are_down(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the form comes back with the text."""
    async with testing.start() as world, visiting(world) as visitor:
        secret = await visitor.secret()
        fields = {"topic": "t", "payload": "a long text", "when": "delay", "delay": "3m"}
        answers = []

        async def send() -> None:
            answers.append(await visitor.send("/produce", fields, secret=secret))

        await world.crash()
        mock_clock.jump(USER_S)  # it would also read the rights of the user again
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            with trio.fail_after(600):
                while not answers:
                    await trio.testing.wait_all_tasks_blocked()
                    mock_clock.jump(1)
        assert answers[0].status_code == 504
        shown = form_of(answers[0], "/produce")
        assert {name: shown[name] for name in fields} == {
            name: [value] for name, value in fields.items()
        }


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/", {"where": "a b", "by": "day"}, "a b"),
        ("/find", {"property": "shop", "key": "k", "state": "overdue"}, "Write name=value"),
        ("/find", {"published": "soon", "key": "k", "state": "cancelled"}, "is not a time"),
        ("/subscriptions", {"namespace": "a b", "search": "s"}, "a b"),
        ("/lateness", {"minutes": "999", "target": "7"}, "minutes is not valid"),
        ("/schedules", {"namespace": "a b", "state": "paused"}, "a b"),
        ("/dead-letters", {"namespace": "a b"}, "a b"),
        ("/audit", {"since": "soon", "verb": "topics."}, "is not a time"),
    ],
)
async def test_refused_filter_keeps_what_was_typed(
    mock_clock: trio.testing.MockClock, path: str, fields: dict[str, str], said: str
) -> None:
    """B14: the user corrects it, and need not go back."""
    async with testing.start() as world, world.connect() as broker, visiting(world) as visitor:
        await broker.admin("topics.create", topic="orders")
        answer = await visitor.http.get(path, params={"where": "orders"} | fields)
        assert answer.status_code == 400, text_of(answer)
        assert said in text_of(answer)
        shown = form_of(answer, path)
        for name, value in fields.items():
            kept = "" if (name, value) == ("published", "soon") else value  # a field for times
            assert shown[name][0] == kept, name
        assert "data-live" not in answer.text
