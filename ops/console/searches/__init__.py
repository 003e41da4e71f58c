"""Searches that run while their pages are looked at: whose they are, and when they end."""
