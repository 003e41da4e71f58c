"""The composition root: assembles a node of its parts, its dialects and its listeners."""
