"""Diagnosis of a cluster from its nodes' status. Pure."""
