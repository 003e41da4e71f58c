"""Handlers of requests: show a page, run an action, log a user in or out."""
