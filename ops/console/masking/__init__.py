"""Masking of messages for viewers: every page that shows a message asks here."""
