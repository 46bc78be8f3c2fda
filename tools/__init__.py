"""Programs for people who work on ampwatch. They are not shipped."""
