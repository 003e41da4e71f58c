"""Write cluster/grafana/*.json, Grafana's dashboards; with --check, compare."""

from tools.dashboards import cluster, groups, replication, topics
from tools.generated import DOCS, write_or_compare

TARGET = DOCS.parent / "cluster" / "grafana"
DASHBOARDS = (cluster.DASHBOARD, topics.DASHBOARD, groups.DASHBOARD, replication.DASHBOARD)

if __name__ == "__main__":
    for dashboard in DASHBOARDS:
        write_or_compare(TARGET / f"{dashboard.name}.json", dashboard.render())
