"""The built-in page: what the fleet knows, as the browser reads it."""
