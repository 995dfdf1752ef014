"""Grafana dashboards as code, and the check that runs their queries on a real Prometheus."""
