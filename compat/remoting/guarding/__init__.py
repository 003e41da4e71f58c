"""On a node with users: who sends a request, and whether that user may."""
