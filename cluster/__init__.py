"""Deployment, and the driver that injects faults into it."""
