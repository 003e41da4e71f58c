"""The broker itself: its state, its statistics, its configuration and its files."""
