"""Signatures of requests (ACL 1.0): who sends one, and whether its secret signed it.

`AccessKey` names the sender, `Signature` is HMAC-SHA1 in base64 over the values of all other
fields, one behind the other in the order of their names, and the body. Fields of SEND_MESSAGE_V2
are signed under their letters, as they travel. A `SecurityToken` is signed like any other field.

Neither the code of a request nor the names of its fields are signed, and no time is: who can read
a request on its way can send it again. Source: Apache RocketMQ 4.9.8, AclClientRPCHook and
PlainAccessValidator.
"""

import base64
import hashlib
import hmac
from dataclasses import replace

from duolog_server.compat.remoting.codec.command import Command

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
LAST_WITHOUT_QUERY_FLAG = 399  # V4_9_3: clients up to it add that field after they have signed


def access_key_of(request: Command) -> str:
    """The access key of a request; empty if unsigned."""
    return request.fields.get(ACCESS_KEY, "")


def signed_content(request: Command) -> bytes:
    """The bytes that a request's signature covers."""
    unsigned = {SIGNATURE}
    if request.version <= LAST_WITHOUT_QUERY_FLAG:
        unsigned.add(UNIQUE_KEY_QUERY)
    fields = request.fields
    text = "".join(fields[name] for name in sorted(fields) if name not in unsigned)
    return text.encode() + request.body


def signature(content: bytes, secret: bytes) -> str:
    """The signature of some content."""
    return base64.b64encode(hmac.digest(secret, content, hashlib.sha1)).decode()


def is_signed(request: Command, secret: bytes) -> bool:
    """Whether the holder of a secret signed a request. Takes equally long for each signature."""
    given = request.fields.get(SIGNATURE, "")
    return hmac.compare_digest(given.encode(), signature(signed_content(request), secret).encode())


def signed(request: Command, access_key: str, secret: str) -> Command:
    """A request with its signature."""
    named = replace(request, fields={**request.fields, ACCESS_KEY: access_key})
    made = signature(signed_content(named), secret.encode())
    return replace(named, fields={**named.fields, SIGNATURE: made})
