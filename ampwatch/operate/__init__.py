"""What an operator is handed: dashboards, alert rules, deployment files."""
