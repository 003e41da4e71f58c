"""The fields of a form, as a browser sends them.

Rules: what is too long, broken off or not a form has no fields, and the page that asked says what
is missing; nothing here raises.
"""

from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request

FIELDS_MAX = 32


async def fields_of(request: Request, most: int) -> dict[str, str]:
    """The fields of a request's form. most: bytes that it may have."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                return {}
    except ClientDisconnect:
        return {}
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in fields.items()}
