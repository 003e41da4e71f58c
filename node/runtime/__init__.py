"""What a process needs before it is a broker: configuration, logs, clocks, memory, files."""
