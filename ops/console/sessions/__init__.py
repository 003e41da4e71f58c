"""Who is logged in, and as whom nodes are called for a request."""
