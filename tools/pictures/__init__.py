"""Pictures of the pages about number formats: drawn from the rows of the formats, and from a real training."""
