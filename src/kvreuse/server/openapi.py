"""The OpenAPI document, made from the table of routes and the types of bodies and replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from kvreuse.server.endpoints import ENDPOINTS, Endpoint
from kvreuse.server.framing import SSE
from kvreuse.server.state import own_version

_REF = "#/components/schemas/{model}"


def document(names: Sequence[str], *, keyed: bool) -> dict[str, Any]:
    """For a server of the model ``names``; ``keyed``: clients need a key."""
    wanted: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = [
        (kind, "validation", TypeAdapter(kind))
        for kind in dict.fromkeys(
            kind
            for endpoint in ENDPOINTS
            for kind in (endpoint.body, endpoint.reply, endpoint.event, endpoint.failure)
            if kind is not None
        )
    ]
    references, definitions = TypeAdapter.json_schemas(wanted, ref_template=_REF)
    schemas = definitions["$defs"]
    for schema in schemas.values():
        if (field := schema.get("properties", {}).get("model")) and "anyOf" in field:
            field["anyOf"][0]["enum"] = list(names)
    refs = {kind: reference for (kind, _), reference in references.items()}
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        operation = _operation(endpoint, refs, names)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    components: dict[str, Any] = {"schemas": schemas}
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "kvreuse", "version": own_version()},
        "paths": paths,
        "components": components,
    }
    if keyed:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
    return whole


def _event(data: dict[str, Any]) -> dict[str, Any]:
    """A server-sent event whose text is JSON of the schema ``data``, or ``[DONE]``."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, text]}},
    }


def _operation(endpoint: Endpoint, refs: dict[Any, Any], names: Sequence[str]) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if endpoint.reply is not None:
        content = {"application/json": {"schema": refs[endpoint.reply]}}
    elif endpoint.path == "/":
        content = {"text/html": {"schema": {"type": "string"}}}
    if endpoint.event is not None:
        item = refs[endpoint.event]
        if endpoint.stream_type == SSE.media_type:
            item = _event(item)
        content[endpoint.stream_type] = {"itemSchema": item}
    error = {"content": {"application/json": {"schema": refs[endpoint.failure]}}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": endpoint.operation,
        "responses": {
            "200": {"description": "It worked.", "content": content},
            "4XX": {"description": "The request is wrong, or comes too soon.", **error},
            "5XX": {"description": "The server is at fault, or ends.", **error},
        },
    }
    if endpoint.path in {"/health", "/ready"}:
        operation["responses"]["503"] = {"description": "It is not.", "content": content}
    if endpoint.body is not None:
        schema = {"schema": refs[endpoint.body]}
        operation["requestBody"] = {"required": True, "content": {"application/json": schema}}
    if "{model}" in endpoint.path:
        operation["parameters"] = [
            {
                "name": "model",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "enum": list(names)},
            }
        ]
    if endpoint.path == "/reset_prefix_cache":
        pinned = {"name": "pinned", "in": "query", "schema": {"type": "boolean"}}
        operation["parameters"] = [pinned | {"description": "Also what is pinned."}]
    return operation
