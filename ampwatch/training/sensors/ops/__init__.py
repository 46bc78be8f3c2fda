"""Which ops ran in which dtype, and why."""
