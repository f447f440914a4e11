"""The page /docs: the API with examples, written from its OpenAPI schema without any external resource."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: HTTP API</title>
<link rel="icon" href="/page/icon.svg">
<link rel="stylesheet" href="/page/page.css">
</head>
<body>
<main>
<h1>{title}: HTTP API</h1>
<p>{description} <a href="/openapi.json">OpenAPI schema</a>, <a href="/">search page</a>.</p>
{routes}
</main>
</body>
</html>
"""


def docs_html(schema: Mapping[str, Any]) -> str:
    """Every route of an OpenAPI schema with its description, example requests and responses, as an HTML page."""
    info = schema["info"]
    routes = "\n".join(
        part
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
        for part in _route_html(method.upper(), path, route)
    )
    return PAGE.format(title=escape(info["title"]), description=escape(info["description"]), routes=routes)


def _route_html(method: str, path: str, route: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section>\n<h2><code>{method} {escape(path)}</code></h2>\n<p>{escape(route.get('description', ''))}</p>"
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    for name, example in content.get("examples", {}).items():
        body = json.dumps(example["value"], indent=2, ensure_ascii=False)
        yield f"<h3>{escape(name)}</h3>\n<pre><code>{escape(body)}</code></pre>"
    responses = "".join(
        f"<dt>{status}</dt><dd>{escape(response['description'])}</dd>"
        for status, response in route["responses"].items()
    )
    yield f"<dl>{responses}</dl>\n</section>"
