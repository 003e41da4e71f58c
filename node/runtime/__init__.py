"""Runtime of a process below the broker: configuration, logs, clocks, memory, files."""
