"""The name server's key-value configuration: there is none here, and tools are answered so.

To delete a pair is no error: tools do so for every topic that they delete.
"""

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import KeyValueRequest, NamespaceRequest
from duolog_server.compat.remoting.refusals import Refused


def one(request: Command) -> Command:
    """GET_KV_CONFIG. Raises Refused."""
    header = read_header(KeyValueRequest, request.fields)
    raise Refused(
        ResponseCode.QUERY_NOT_FOUND,
        f"No config item, Namespace: {header.namespace[:80]} Key: {header.key[:200]}",
    )


def delete(request: Command) -> Command:
    """DELETE_KV_CONFIG."""
    read_header(KeyValueRequest, request.fields)
    return request.answer(0)


def all_of(request: Command) -> Command:
    """GET_KVLIST_BY_NAMESPACE. Raises Refused."""
    header = read_header(NamespaceRequest, request.fields)
    raise Refused(
        ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace[:80]}"
    )
