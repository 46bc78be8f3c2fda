"""The site: what the pages of docs/ need to be one, and what is checked of it."""
