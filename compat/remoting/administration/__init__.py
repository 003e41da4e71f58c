"""Administration: what mqadmin, the dashboard and the exporter ask for."""
