"""One op at a time: the mode that sees it, the call, its dtypes, FLOPs and operands."""
