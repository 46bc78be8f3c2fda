"""``watch.log_to(sink)``: the numbers and the findings, in the loggers that people look at already.

Recognised by what they can do, and never imported.
"""
