"""The broker that is followed: its calls, its tables, its cluster."""
