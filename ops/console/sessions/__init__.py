"""Sessions: the logged-in user, and the credentials with which a request calls nodes."""
