"""Files for operators: dashboards, alert rules, deployments."""
