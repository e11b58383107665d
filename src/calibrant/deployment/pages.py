"""The page at /docs: the interface of the service, without a script and without anything from another site."""

from html import escape
from typing import Any

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2430; }
code, pre { font: 14px/1.45 ui-monospace, monospace; } td, th { text-align: left; padding: .2rem 1rem .2rem 0; }
h2 { margin-top: 2rem; border-top: 1px solid #ccd; padding-top: 1rem; } td { vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #14181f; color: #dde3ee; } }
"""


def interface_page(openapi: dict[str, Any]) -> str:
    """An HTML page for an OpenAPI document.

    Args:
        openapi: The document, as FastAPI makes it.
    """
    info = openapi["info"]
    title = f"{info['title']} {info['version']}"
    parts = [f"<h1>{escape(title)}</h1><p>{escape(info['description'])}</p>"]
    parts.append("<p>As a document for programs: <a href='openapi.json'>openapi.json</a>.</p>")
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation.get('description', ''))}</p>")
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]["schema"]
                parts.append(f"<h3>Body</h3>{_fields(content)}")
            answers = [_answer(openapi, status, answer) for status, answer in operation["responses"].items()]
            parts.append("<h3>Answers</h3>" + "".join(answers))
    body = "".join(parts)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body>{body}</body></html>"
    )


def _answer(openapi: dict[str, Any], status: str, answer: dict[str, Any]) -> str:
    reference = answer.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
    schema = openapi.get("components", {}).get("schemas", {}).get(reference.rpartition("/")[2], {})
    if status != "200":
        return f"<code>{escape(status)}</code> {escape(schema.get('title', ''))} "
    return f"<p><code>200</code> {escape(schema.get('description', ''))}</p>{_fields(schema)}<p>Errors: </p>"


def _fields(schema: dict[str, Any]) -> str:
    rows = []
    for name, value in schema.get("properties", {}).items():
        kinds = [value, *value.get("anyOf", [])]
        kind = " or ".join(str(each["type"]) for each in kinds if "type" in each)
        text = value.get("description", "")
        rows.append(f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(text)}</td></tr>")
    return f"<table>{''.join(rows)}</table>"
