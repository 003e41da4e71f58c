"""Messages that wait, a page at a time: for their time, or for their producer's decision."""
