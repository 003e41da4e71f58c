"""What becomes of a request: a page is looked at, something is changed, a user logs in or out."""
