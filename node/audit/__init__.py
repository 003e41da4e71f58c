"""The audit log: who did what, from where, and what was denied; as a file and as a topic.

Rules: what calls the services notes entries here, and never waits for them. No secret is ever in
an entry: of a request, it has only the fields that `subjects.py` names.
"""
