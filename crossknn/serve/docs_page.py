"""The API for people who read: one page made from its OpenAPI schema, which loads nothing from elsewhere."""

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
<link rel="stylesheet" href="/page/page.css">
</head>
<body>
<main>
<h1>{title}: HTTP API</h1>
<p>{description} <a href="/openapi.json">The same as an OpenAPI schema.</a> <a href="/">The page to try it.</a></p>
{routes}
</main>
</body>
</html>
"""


def write_docs(schema: Mapping[str, Any]) -> str:
    """The page of a schema: every route with what it is for, examples of requests, and what it answers."""
    about = schema["info"]
    routes = "\n".join(
        line
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
        for line in _describe(method.upper(), path, route)
    )
    return PAGE.format(title=escape(about["title"]), description=escape(about["description"]), routes=routes)


def _describe(method: str, path: str, route: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section>\n<h2><code>{method} {escape(path)}</code></h2>\n<p>{escape(route.get('description', ''))}</p>"
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    for name, example in content.get("examples", {}).items():
        body = json.dumps(example["value"], indent=2, ensure_ascii=False)
        yield f"<h3>{escape(name)}</h3>\n<pre><code>{escape(body)}</code></pre>"
    answers = "".join(
        f"<dt>{status}</dt><dd>{escape(answer['description'])}</dd>" for status, answer in route["responses"].items()
    )
    yield f"<dl>{answers}</dl>\n</section>"
