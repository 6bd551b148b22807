"""The page that shows the OpenAPI document and tries requests: Swagger UI, served from here.

``swagger_ui`` has files of swagger-ui-dist 5.35.0 (npm), unchanged, under the Apache License 2.0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

_FOLDER: Final = Path(__file__).parent
_FILES: Final = {
    "": "index.html",
    "/start.js": "start.js",
    "/swagger_ui/swagger-ui.css": "swagger_ui/swagger-ui.css",
    "/swagger_ui/swagger-ui-bundle.js": "swagger_ui/swagger-ui-bundle.js",
}
# The page loads nothing from elsewhere. Swagger UI sets styles of elements, and has inline images.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS: Final = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}


def routes() -> list[BaseRoute]:
    """Return the routes of the page, which is at /docs."""
    return [Route(f"/docs{path}", _serving(_FOLDER / name)) for path, name in _FILES.items()]


def _serving(file: Path) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        return FileResponse(file, headers=_HEADERS)

    return serve
