"""Whether a client makes spans: it does where the program has set up OpenTelemetry.

Nothing is loaded for it otherwise. A program that has a tracer provider has loaded OpenTelemetry's
API itself, so that its absence needs no import to be noticed.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from duolog._spans import Spans


def spans_of(provider: "TracerProvider | None", version: str) -> "Spans | None":
    """Makes a client's spans; None if tracing is off.

    provider: None for the program's own (`opentelemetry.trace.set_tracer_provider`).
    """
    if provider is None:
        api = sys.modules.get("opentelemetry.trace")
        if api is None:
            return None
        provider = api.get_tracer_provider()
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider

    if provider is None or isinstance(provider, NoOpTracerProvider | ProxyTracerProvider):
        return None
    from duolog._spans import Spans

    return Spans(provider, version)


__all__ = ["spans_of"]
