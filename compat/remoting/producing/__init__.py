"""Producers: sends, and the decisions on half messages."""
