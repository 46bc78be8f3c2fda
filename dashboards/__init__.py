"""What an operator looks at: dashboards, alert rules, and the programs that make them."""
