"""A group of messages: how many it has, and its follow-ups."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from escapement.console.visit.view import Page, View


async def _group(view: View) -> Response:
    group = await view.broker.admin(
        "groups.get", topic=view.path("topic"), group=view.path("group")
    )
    return view.show("messages/group.html", group=group)


PAGES: Final = [Page("/groups/{topic:path}/{group}", _group)]
