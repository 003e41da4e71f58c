"""Injects planned faults into a running cluster, and checks the histories of its clients."""
