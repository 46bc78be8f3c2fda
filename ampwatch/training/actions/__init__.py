"""What is done about a finding. Users reach it as ``ampwatch.actions``."""
