"""Client programs: one process a measurement, each with the peer's own official client."""
