"""Who callers are, what they may do, and how much of it: users, rights and quotas."""
