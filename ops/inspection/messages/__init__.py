"""Messages as an operator has to do with them: found, read, followed and sent."""
