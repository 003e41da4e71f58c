"""Breaks a running cluster in planned ways while clients use it, and checks what they were told."""
