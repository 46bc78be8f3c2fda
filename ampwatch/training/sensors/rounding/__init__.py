"""What rounds away: casts, sums, averages and accumulated gradients."""
