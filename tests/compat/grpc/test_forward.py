"""Relayed calls: the name of a reply's class."""

from duolog_server.compat.grpc.protocol.stubs import SERVICE_NAME, service


def test_a_reply_is_named_after_its_method() -> None:
    (api,) = service.DESCRIPTOR.services_by_name.values()
    assert api.full_name == SERVICE_NAME
    for method in api.methods:
        if method.name != "Telemetry":
            assert method.output_type.name == f"{method.name}Response"
