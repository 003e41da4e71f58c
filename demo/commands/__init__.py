"""Commands of `duolog` that start or measure nodes."""
