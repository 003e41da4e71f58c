"""What is stored now and shown later: delays, timers, transactions, published batches.

Services over the core, and the way an append takes to them. They know no consumers and no broker;
of the protocols only the form of an append, which staged batches are kept in.
"""
