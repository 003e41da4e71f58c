"""A whole cluster in one thread from one seed: the second driver of store and ha."""

import os

# Runs make and drop many large arrays of which they touch a corner: huge pages would be zeroed.
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
