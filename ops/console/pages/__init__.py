"""The pages: each asks the nodes, and says what its template shows. None knows of HTTP."""
