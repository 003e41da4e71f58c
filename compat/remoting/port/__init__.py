"""The port: connections, their frames and their bounds; nothing of what requests do."""
