"""HTTP as the console speaks it: server, bounds, forms and streams. Knows nothing of pages."""
