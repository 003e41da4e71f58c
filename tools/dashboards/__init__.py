"""Grafana's dashboards of duolog, one module each."""
