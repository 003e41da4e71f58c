"""Who calls: users, what they prove themselves by, and the gate that every API asks.

The gate knows the users by the replicated tables, and changes nothing. What a user may do is
decided in `rights`. The services of all APIs, and the metrics, may use this.
"""
