"""Four additions to mkdocs for this site; see mkdocs.yml.

- ``*`` in the nav stands for all matching files, so that new pages appear without an entry.
- A link to a file of the repository outside docs/ becomes plain text, because the site has no
  such page. If the file does not exist, the build fails.
- ``{{ policies }}`` becomes the tables of all policies, made from their rules.
- The build fails if a page shows a Python object, such as ``<function f at 0x7f…>`` as the default
  of an option.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

from escapement.durations import format as duration_text
from escapement.storage.catalog.policy import (
    NamespacePolicy,
    Policy,
    SubscriptionPolicy,
    TopicPolicy,
    rule_of,
)

log = logging.getLogger("mkdocs.hooks")

_OBJECT = re.compile(r"\bSentinel\.\w+|&lt;function [\w.]+|\bobject at 0x")
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Expand the ``*`` in the nav."""
    docs = Path(config.docs_dir)
    config.nav = list(_expanded(config.nav, docs))
    return config


def _expanded(entries: list[Any], docs: Path) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, str) and "*" in entry:
            yield from (str(path.relative_to(docs)) for path in sorted(docs.glob(entry)))
        elif isinstance(entry, dict):
            yield {
                title: list(_expanded(below, docs)) if isinstance(below, list) else below
                for title, below in entry.items()
            }
        else:
            yield entry


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace links that leave docs/, and insert the tables of policies."""
    docs = Path(config.docs_dir).resolve()
    here = Path(page.file.abs_src_path).resolve().parent

    def plain(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if target.is_relative_to(docs):
            return found[0]
        if not target.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, found[2])
        return found[1]

    markdown = _LINK.sub(plain, markdown)
    if "{{ policies }}" in markdown:
        markdown = markdown.replace("{{ policies }}", "\n".join(_policies()))
    return markdown


def on_page_content(html: str, page: Any, config: Any, files: Any) -> None:
    """Refuse pages with the names of Python objects."""
    if shown := _OBJECT.search(html):
        raise PluginError(f"{page.file.src_uri} shows a Python object: {shown[0]}")


def _policies() -> Iterator[str]:
    kinds: tuple[type[Policy], ...] = (NamespacePolicy, TopicPolicy, SubscriptionPolicy)
    for kind in kinds:
        yield f"\n## {kind.WHAT.capitalize()}\n"
        yield f"Set with `escapement admin {kind.WHAT}s update`.\n"
        yield "| option | field | default | meaning |"
        yield "|---|---|---|---|"
        default = kind().plain()
        for name in kind.names():
            rule = rule_of(kind, name)
            option = "--" + name.removesuffix("_ms").replace("_", "-")
            shown = rule.in_words(default[name])
            if isinstance(shown, bool):
                shown = "yes" if shown else "no"
            if name.endswith("_ms") and type(shown) is int:
                shown = duration_text(shown)
            values = rule.metavar.replace("|", "\\|")
            yield f"| `{option}` *{values}* | `{name}` | {shown} | {rule.help} |"
