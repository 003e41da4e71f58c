"""A whole cluster in one thread from one seed: the second driver of store and ha."""
