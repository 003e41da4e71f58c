"""Deferred messages: dead letters, delayed messages and half messages."""
