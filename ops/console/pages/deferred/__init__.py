"""What waits, or was given up: dead letters, delayed messages and half messages."""
