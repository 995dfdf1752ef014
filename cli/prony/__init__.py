"""The `prony` command: the only place that wires the parts together."""
