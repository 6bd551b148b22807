"""The forms of a page, as a browser would send them."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final
from urllib.parse import urlsplit

import httpx

# The controls of a form, by name: a control may have several values.
Controls = dict[str, list[str]]
_BOXES: Final = ("checkbox", "radio")


class _Forms(HTMLParser):
    """Reads the forms of a page.

    Attributes:
      found: the paths to which each form can be sent, and its controls.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path: Final = path
        self.found: list[tuple[set[str], Controls]] = []
        self._is_open = False
        self._is_post = False
        self._select = ""
        self._area: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append(({given["action"]} if "action" in given else set(), {}))
            self._is_open, self._is_post = True, given.get("method") == "post"
        if not self._is_open:
            return
        paths, controls = self.found[-1]
        name, value = given.get("name", ""), given.get("value", "")
        if "formaction" in given:
            paths.add(given["formaction"])
        if tag == "select":
            self._select = name
        elif tag == "option" and self._select:
            values = controls.setdefault(self._select, [])
            if "selected" in given or not values:
                values[:] = [value]
        elif tag == "textarea":
            self._area = controls.setdefault(name, [""])
        elif tag == "input" and name and ("checked" in given or given.get("type") not in _BOXES):
            controls.setdefault(name, []).append(value)

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self._area[0] += data.removeprefix("\n")  # browsers leave the first one out

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            paths, _ = self.found[-1]
            if self._is_post and not paths:
                paths.add(self._path)
            self._is_open = False
        elif tag == "select":
            self._select = ""
        elif tag == "textarea":
            self._area = None


def form_of(answer: httpx.Response, path: str) -> Controls:
    """Return what the form of a page that can be sent to ``path`` would send, without a button.

    Of two such forms, it is the latter: each page begins with a box to search.
    """
    forms = _Forms(urlsplit(str(answer.url)).path)
    forms.feed(answer.text)
    *_, found = (controls for paths, controls in forms.found if path in paths)
    return found
